// A consumer in C++: takes batches of floats from the queue until one is empty.

#include <baton.hpp>
#include <iostream>

int main() {
	try {
		// region consume
		auto session = baton::session::connect();
		auto queue = session.queue("c/batches");
		for (const baton::message &message : queue) {
			if (message.size() == 0)
				return 0;
			baton::tensor batch = message.tensor();
			auto x = batch.as<const float>(); // no copy: the producer's bytes
			auto shape = batch.shape();
			std::cout << "batch " << message.sequence() << " " << message.meta() << ": first " << x(0, 0) << ", last "
			          << x(shape[0] - 1, shape[1] - 1) << "\n";
		}
		// endregion
	} catch (const baton::error &e) {
		std::cerr << "consumer: " << e.what() << "\n";
		return 1;
	}
}
