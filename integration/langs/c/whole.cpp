// The whole of baton.hpp, by two processes: "send" makes and sends, "receive" takes and checks.

#include <baton.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <poll.h>
#include <thread>

#include "check.hpp"

using namespace std::chrono_literals;

// The class and the code that a call throws.
#define THROWS(call, type, want) \
	do { \
		try { \
			(void)(call); \
			std::fprintf(stderr, "line %d: %s threw nothing\n", __LINE__, #call); \
			std::exit(1); \
		} catch (const type &e) { \
			CHECK(e.code() == (want) && *e.what() && std::strcmp(e.name(), baton_status_name(want)) == 0); \
		} \
	} while (0)

// A process whose partner has failed fails, too.
static constexpr auto patience = 60s;

static baton::session opened(const char *role) {
	baton::options o;
	o.name = role;
	return baton::session::connect(o);
}

static baton::tensor counted(const baton::session &s) {
	auto x = s.alloc<float>({2, 3});
	auto at = x.as<float>();
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < 3; k++)
			at(i, k) = static_cast<float>(10 * i + k);
	return x;
}

static void tensors(const baton::session &s) {
	auto x = counted(s);
	CHECK(x.shape() == std::vector<int64_t>({2, 3}) && x.size() == 6 && x.contiguous() && !x.read_only());
	CHECK(x.strides() == std::vector<int64_t>({3, 1}) && x.device().device_type == kDLCPU);
	float sum = 0;
	for (float f : x.flat<const float>())
		sum += f;
	CHECK(sum == 36 && x.flat<float>()[4] == 11);

	auto column = x.view_as(x.dtype(), {2}, {3}, 4);
	CHECK(column.as<const float>()(1) == 11 && !column.contiguous());
	THROWS(column.flat<float>(), baton::error, BATON_INVALID_ARGUMENT);
	auto again = column.duplicate();
	CHECK(again.data() == column.data());
	auto row = x.view_as(baton::dtype("float32"), {3}, 12);
	CHECK(row.flat<float>()[0] == 10);
	THROWS(x.view_as(x.dtype(), {7}), baton::error, BATON_INVALID_ARGUMENT);
	THROWS(x.view_as(x.dtype(), {7}, {1, 1}, 0), baton::error, BATON_INVALID_ARGUMENT);

	auto frozen = x.as_read_only();
	CHECK(frozen.read_only() && frozen.as<const float>()(0, 1) == 1);
	THROWS(frozen.as<float>(), baton::error, BATON_READ_ONLY);
	THROWS(x.as<double>(), baton::error, BATON_INVALID_ARGUMENT);
	THROWS(frozen.to_legacy(), baton::error, BATON_READ_ONLY);
	auto mine = frozen.to_legacy_private();
	static_cast<float *>(mine->dl_tensor.data)[0] = 5;
	CHECK(x.as<float>()(0, 0) == 0);
	auto old = x.to_legacy();
	CHECK(s.from_dlpack(old.get()).data() == x.data());
	CHECK(s.from_dlpack(x.get()).data() == x.data());

	CHECK(s.alloc<std::complex<float>>({2}).dtype().bits == 64 && s.alloc<baton::boolean>({2}).dtype().code == kDLBool);
	auto bytes = s.alloc<uint8_t>({4});
	std::fill(bytes.flat<uint8_t>().begin(), bytes.flat<uint8_t>().end(), uint8_t{2});
	bytes.flat<uint8_t>()[3] = 0;
	auto truths = bytes.view_as({kDLBool, 8, 1}, {2, 2}); // what another process may write
	auto row_of = truths.flat<baton::boolean>();
	CHECK(std::count(row_of.begin(), row_of.end(), true) == 3 && row_of[0] && !row_of[3]);
	row_of[3] = true;
	CHECK(bytes.flat<const uint8_t>()[3] == 1 && truths.as<const baton::boolean>()(1, 1) == true);
	row_of[3] = false;
	const bool last = row_of[3];
	CHECK(!last && bytes.flat<const uint8_t>()[3] == 0);
	CHECK(s.alloc<std::byte>({}).size() == 1 && s.alloc<const int16_t>({0}).size() == 0);
	CHECK(baton::element<unsigned char>::type.code == kDLUInt && baton::element<char>::type.bits == 8);
	THROWS(s.alloc(baton::dtype("float32"), {-1}), baton::error, BATON_INVALID_ARGUMENT);
	THROWS(baton::dtype("float33"), baton::error, BATON_INVALID_ARGUMENT);

	baton::tensor moved = std::move(x);
	CHECK(!x && moved); // NOLINT: what was moved from is looked at
	THROWS(x.as<float>(), baton::error, BATON_INVALID_ARGUMENT);
	THROWS(x.handle(), baton::error, BATON_INVALID_ARGUMENT);
	CHECK(!moved.ordered_by_streams());
	moved.use_on(BATON_NO_STREAM);
	moved.written(0s);
	baton::alloc_options gpu;
	gpu.device = "vulkan:0";
	THROWS(s.alloc<float>({1}, gpu), baton::error, BATON_INVALID_ARGUMENT);
	THROWS(s.lend(s.alloc<float>({1}).release(), baton::stream_number(nullptr)), baton::error, BATON_UNSUPPORTED);

	DLPackExchangeAPI table;
	s.exchange_api(&table);
	CHECK(table.managed_tensor_allocator && table.header.version.major == 1);
}

// The end of a session is no end of what a loop goes over.
static void loops() {
	const auto ended = [](auto open) {
		auto own = baton::session::connect();
		auto source = open(own);
		std::thread closer([&] { own.close(); });
		THROWS([&] { for (const baton::message &m : source) (void)m; }(), baton::closed, BATON_CLOSED);
		closer.join();
	};
	ended([](const baton::session &own) { return own.queue("loop/q"); });
	ended([](const baton::session &own) { return own.topic("loop/t").reader(); });
	auto own = baton::session::connect();
	const auto closes = [&](const baton::queue &q) {
		q.put(counted(own));
		q.close();
		size_t n = 0;
		for (const baton::message &m : q)
			n += m.size();
		CHECK(n == 1);
		try {
			q.take();
		} catch (const baton::closed &e) {
			CHECK(!e.topic().empty());
		}
	};
	closes(own.queue("loop/closed"));
	closes(own.queue({}));
	const std::string zero("a\0b", 3);
	THROWS(own.topic(zero), baton::error, BATON_INVALID_ARGUMENT);
	THROWS(own.queue("q").put({{zero, counted(own)}}), baton::error, BATON_INVALID_ARGUMENT);
	THROWS(baton::value::dict({{zero, 1}}), baton::error, BATON_INVALID_ARGUMENT);
}

// A tensor of another session comes into this one as a copy.
static void moved(const baton::session &s) {
	const auto x = counted(s);
	const auto other = baton::session::connect();
	THROWS(other.queue("moved").put(x, 0s), baton::error, BATON_INVALID_ARGUMENT);
	const auto y = other.from_dlpack(x.get());
	CHECK(y.data() != x.data() && y.as<const float>()(1, 2) == 12);
	other.queue("moved").put(y, 0s);
	other.queue("moved").take(0s);
	CHECK(s.from_dlpack(x.get()).data() == x.data());
}

static void refusals(const baton::session &s) {
	baton::channel_options brief;
	brief.linger = 0s;
	auto q = s.queue({}, brief);
	THROWS(q.take(0s), baton::empty, BATON_EMPTY);
	THROWS(q.take(1ms), baton::timeout, BATON_EMPTY);
	CHECK(!q.try_take() && q.waiting() == 0);
	baton::channel_options narrow;
	narrow.depth = 1;
	narrow.linger = 0s;
	auto one = s.queue("narrow", narrow);
	one.put({});
	THROWS(one.put({}, -1s), baton::full, BATON_FULL); // a deadline that has passed
	narrow.depth = 2;
	THROWS(s.queue("narrow", narrow), baton::conflict, BATON_CONFLICT);
	narrow.linger = -1ns;
	THROWS(s.topic("narrow", narrow), baton::error, BATON_INVALID_ARGUMENT);
	baton::channel_options there;
	there.create = false;
	THROWS(s.topic("not/there", there), baton::not_found, BATON_NOT_FOUND);
	THROWS(s.get("not/there"), baton::not_found, BATON_NOT_FOUND);
	THROWS(s.remove("not/there"), baton::not_found, BATON_NOT_FOUND);
	CHECK(!s.try_get("not/there"));
	THROWS(s.open("{}"), baton::error, BATON_INVALID_HANDLE);
	auto t = s.topic({}, brief);
	auto r = t.reader();
	THROWS(r.receive(0s), baton::timeout, BATON_TIMEOUT);
	CHECK(!r.try_receive() && r.lost() == 0);
	auto w = s.watch("not/there");
	CHECK(baton::wait_any({r, q, w}, 0s).empty() && baton::wait_any({r, q, w}, 1ms).empty());
	THROWS(baton::wait_any({}), baton::error, BATON_INVALID_ARGUMENT);
	q.put({});
	t.send({});
	CHECK((baton::wait_any({w, q, r, q}) == std::vector<size_t>{1, 2, 3}));
	CHECK(q.try_take() && r.try_receive() && baton::wait_any({w, q, r}, 0s).empty());
	t.close();
	CHECK((baton::wait_any({w, q, r}) == std::vector<size_t>{2}));
	THROWS(r.receive(), baton::closed, BATON_CLOSED);
	baton::options nowhere;
	nowhere.address = "unix:/no/broker/is/here";
	nowhere.timeout = 1ms;
	THROWS(baton::session::connect(nowhere), baton::no_broker, BATON_NO_BROKER);
	auto other = s.reopen();
	narrow.linger = 0s;
	auto waiting = other.queue("narrow2", narrow);
	std::thread ends([&] { other.close(); });
	THROWS(waiting.take(), baton::closed, BATON_CLOSED);
	ends.join();
	THROWS(other.fd(), baton::closed, BATON_CLOSED);
}

static int sends() {
	auto s = opened("whole-send");
	CHECK(std::strcmp(baton::version(), BATON_VERSION) == 0);
	tensors(s);
	refusals(s);
	loops();
	moved(s);

	baton::channel_options lossless, brief;
	lossless.overwrite = false;
	lossless.linger = brief.linger = 0s;
	auto topic = s.topic("whole/t", lossless);
	s.get("whole/ready", patience);
	auto x = counted(s), y = s.alloc<int64_t>({1});
	y.flat<int64_t>()[0] = 42;
	topic.send(x);
	topic.send({{"image", x}, {"label", y}});
	topic.send(baton::payload({{"", x}}).add("", y).tree(R"({"a":[{"$":"tensor","i":0},{"$":"tensor","i":1}]})").meta("{\"epoch\":3}"));
	topic.send({}, 5s);
	topic.close();

	auto work = s.queue("whole/q", brief);
	auto replies = s.queue({}, brief); // private: by its token
	const auto kept = x.handle(baton::forever);
	work.put(baton::payload().meta(kept));
	work.put(baton::payload().meta("{\"token\":\"" + replies.token() + "\"}"));
	work.put({{"x", x}, {"y", y}});
	auto reply = replies.take(patience);
	CHECK(reply.sender() == "whole-receive" && reply.tensor().flat<int64_t>()[0] == 43);
	s.release_handle(kept);
	work.close();

	CHECK(s.set("whole/w", {{"w", x}}) == 1);
	s.get("whole/seen", patience);
	auto z = counted(s);
	z.as<float>()(1, 2) = 99;
	CHECK(s.set("whole/w", {{"w", z}}) == 2);
	s.get("whole/done", patience);
	auto names = s.names("whole/*"); // in no order
	std::sort(names.begin(), names.end());
	CHECK(names == std::vector<std::string>({"whole/done", "whole/ready", "whole/seen", "whole/w"}));
	for (const auto &name : names)
		s.remove(name);

	const auto stats = s.stats();
	CHECK(stats.handovers >= 9 && stats.granted > 0);
	s.collect();
	s.close(); // the exchange table's allocator has it still
	return 0;
}

static int receives() {
	auto s = opened("whole-receive");
	baton::channel_options lossless, brief;
	lossless.overwrite = false;
	lossless.linger = brief.linger = 0s;
	auto reader = s.topic("whole/t", lossless).reader(baton::start::all);
	s.set("whole/ready", {});
	int n = 0;
	for (baton::message &m : reader) {
		CHECK(m.sender() == "whole-send" && m.sequence() == static_cast<uint64_t>(++n) && m.lost() == 0 && m.stamp() > 0s && !m.live());
		if (n == 1) {
			CHECK(m.size() == 1 && m.name(0).empty() && m.tensor().read_only() && m.tensor().as<const float>()(1, 2) == 12);
			THROWS(m.tensor().as<float>(), baton::error, BATON_READ_ONLY);
			THROWS(m.tensor(1), baton::not_found, BATON_NOT_FOUND);
			THROWS(m.name(1), baton::not_found, BATON_NOT_FOUND);
		} else if (n == 2) {
			CHECK(m["label"].flat<const int64_t>()[0] == 42 && m.meta().empty() && m.tree().empty());
			THROWS(m["other"], baton::not_found, BATON_NOT_FOUND);
			std::string names;
			for (auto &[name, t] : m.items()) {
				names += name;
				CHECK(t.read_only());
			}
			CHECK(names == "imagelabel" && m.tensors().size() == 2);
		} else if (n == 3) {
			CHECK(m.meta() == "{\"epoch\":3}" && m.name(1) == "a/1" && m["a/0"].as<const float>()(0, 1) == 1 && !m.tree().empty());
			m.use_stream(BATON_NO_STREAM);
		} else {
			CHECK(m.size() == 0 && m.tensors().empty());
		}
	}
	CHECK(n == 4);

	auto work = s.queue("whole/q", brief);
	baton::tensor opened = s.open(std::string(work.take(patience).meta()));
	CHECK(opened.as<const float>()(1, 1) == 11);
	const std::string meta(work.take(10s).meta());
	const auto first = meta.find(":\"") + 2;
	auto replies = s.private_queue(meta.substr(first, meta.rfind('"') - first));
	auto answer = s.alloc<int64_t>({1});
	answer.flat<int64_t>()[0] = work.take(patience)["y"].flat<int64_t>()[0] + 1;
	replies.put(answer);
	for (baton::message &m : work)
		CHECK(m.size() == 99); // it is closed, and empty

	auto watch = s.watch("whole/w");
	auto now = watch.receive(patience);
	CHECK(now.sequence() == 1 && now["w"].as<const float>()(1, 2) == 12 && now.sender().empty() && now.stamp() == 0s);
	CHECK(!watch.try_receive());
	s.set("whole/seen", {}, {false, false});
	std::optional<baton::message> next; // by the descriptor, as in a loop of the program's
	while (!(next = watch.try_receive())) {
		pollfd p = {s.fd(), POLLIN, 0};
		CHECK(poll(&p, 1, 10000) == 1);
		s.clear_fd();
	}
	CHECK(next->sequence() == 2 && (*next)["w"].as<const float>()(1, 2) == 99);
	s.set("whole/done", {});
	return 0;
}

int main(int argc, char **argv) {
	try {
		return argc == 2 && std::strcmp(argv[1], "send") == 0 ? sends() : receives();
	} catch (const baton::error &e) {
		std::fprintf(stderr, "%s: %s: %s\n", argv[argc - 1], e.name(), e.what());
		return 1;
	}
}
