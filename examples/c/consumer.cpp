// A consumer in C++: takes batches of floats from the queue until one is empty.

#include "baton.hpp"

#include <iostream>

int main() {
	try {
		auto session = baton::connect();
		auto queue = baton::open_queue(session, "c/batches");
		for (;;) {
			auto message = baton::get(queue);
			if (baton_message_count(message.get()) == 0)
				return 0;
			auto batch = baton::first(message);
			const auto *x = static_cast<const float *>(batch->dl_tensor.data); // no copy: the producer's bytes
			int64_t n = 1;
			for (int32_t d = 0; d < batch->dl_tensor.ndim; d++)
				n *= batch->dl_tensor.shape[d];
			std::cout << "batch " << baton_message_sequence(message.get()) << " " << baton_message_meta(message.get())
			          << ": first " << x[0] << ", last " << x[n - 1] << "\n";
		}
	} catch (const baton::error &e) {
		std::cerr << "consumer: " << e.what() << "\n";
		return 1;
	}
}
