// Streams and functions as arguments in C++: as streams.c, by baton.hpp.

#include <baton.hpp>

#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <iostream>
#include <mutex>
#include <thread>
#include <unistd.h>

#include "throws.hpp"

using namespace std::chrono_literals;
using steps = std::function<int64_t(int64_t, baton::tensor)>;

static baton::tensor floats(const baton::session &s, int64_t n, float value) {
	auto x = s.alloc<float>({n});
	for (float &f : x.flat<float>())
		f = value;
	return x;
}

static int64_t step(int64_t i, baton::tensor x) {
	x.flat<float>()[0]++;
	return i;
}

// Calls a function as st/step is.
template <class F> static int64_t apply_to(const baton::session &s, const F &f, int64_t i) {
	const auto x = floats(s, 1, static_cast<float>(i));
	const int64_t n = f(i, x.duplicate());
	CHECK(x.flat<float>()[0] == static_cast<float>(i) + 1);
	return n;
}

static void serve(const baton::session &s) {
	std::atomic<int64_t> sent{0};
	std::optional<baton::function> kept;
	std::vector<baton::provided> all;
	all.push_back(s.provide(
	    "st/count",
	    [&](int64_t n, baton::part_sender<std::tuple<int64_t, baton::tensor>> send) {
		    for (int64_t i = 0; i < n; i++)
			    send({i, floats(s, 3, static_cast<float>(i))});
		    return n;
	    },
	    {"n"}));
	all.push_back(s.provide(
	    "st/forever",
	    [&](bool hold, baton::part_sender<int64_t> send) {
		    sent = 0;
		    if (hold) {
			    s.set("st/begun", {});
			    CHECK(baton::current_call().wait_cancelled());
		    }
		    try {
			    for (int64_t i = 0;; i++, sent++)
				    send(i);
		    } catch (const baton::cancelled &) {
			    s.set("st/left", {});
			    throw;
		    }
	    },
	    {{"hold", false}}));
	all.push_back(s.provide("st/sent", [&] { return sent.load(); }));
	all.push_back(s.provide("st/fail", [](baton::part_sender<int> send) {
		send(0);
		std::thread([&] { send(1); }).join(); // any thread may
		throw baton::failure("ValueError", "enough");
	}));
	all.push_back(s.provide(
	    "st/die",
	    [](int64_t n, baton::part_sender<> send) {
		    for (int64_t i = 0; i < n; i++)
			    send(i);
		    kill(getpid(), SIGKILL);
	    },
	    {"n"}));
	all.push_back(s.provide("st/step", step, {"i", "x"}));
	all.push_back(s.provide(
	    "st/apply",
	    [&](steps f, int64_t n) {
		    int64_t sum = 0;
		    for (int64_t i = 0; i < n; i++)
			    sum += apply_to(s, f, i);
		    return sum;
	    },
	    {"f", "n"}));
	all.push_back(s.provide("st/keep", [&](baton::function f) { kept = std::move(f); }, {"f"}));
	all.push_back(s.provide("st/late", [&]() -> std::string {
		try {
			kept->call(0, floats(s, 1, 0));
			return "it can be called";
		} catch (const baton::closed &e) {
			return e.name();
		}
	}));
	all.push_back(s.provide("st/same", [](const baton::value &f) { return f; }, {"f"}));
	std::cout << "\"ready\"" << std::endl;
	for (std::string line; std::getline(std::cin, line);)
		;
}

static void marked(const baton::session &s, const char *name) {
	s.get(name, baton::forever);
	s.remove(name);
}

// Waits until st/forever has given so many parts, and no more.
static void ahead(const baton::session &s, int64_t want) {
	for (int looks = 0; looks < 5;) {
		const auto n = s.call<int64_t>("st/sent");
		CHECK(n <= want);
		looks += n == want;
	}
}

static void streams(const baton::session &s) {
	for (int64_t n : {0, 3, 150}) {
		int64_t got = 0;
		auto parts = s.function("st/count").ahead(static_cast<uint32_t>(1 + n / 3)).stream<std::pair<int64_t, baton::tensor>>(n);
		for (const auto &[i, x] : parts) {
			CHECK(i == got && x.size() == 3 && x.flat<float>()[2] == static_cast<float>(got));
			got++;
		}
		CHECK(got == n && !parts.next());
		const auto result = parts.result();
		CHECK(result.is_none() || result.as<int64_t>() == n);
		THROWS(parts.next(), baton::closed, );
	}

	auto forever = s.function("st/forever");
	{
		auto first = s.function("st/forever").ahead(2).stream<int>();
		CHECK(first.next() == 0);
		ahead(s, 3);
		CHECK(first.next() == 1 && first.next() == 2);
		ahead(s, 5);
		int last = 0;
		for (int i : forever.stream<int>()) // in the place of the first; it is left early
			if ((last = i) == 3)
				break;
		CHECK(last == 3);
		marked(s, "st/left");
		CHECK(first.next() == 3);
	}
	marked(s, "st/left");
	auto held = forever.stream<int>(true);
	THROWS(held.next(0s), baton::empty, CHECK(e.code() == BATON_EMPTY));
	std::thread ends([&] {
		marked(s, "st/begun");
		held.cancel();
	});
	THROWS(held.next(), baton::cancelled, );
	ends.join();
	marked(s, "st/left");
	auto late = s.function("st/count").timeout(20ms).stream(1000000); // it may not have begun by then
	const auto all = [&] {
		while (late.next())
			;
	};
	THROWS(all(), baton::timeout, CHECK(e.code() == BATON_TIMEOUT));
	THROWS(late.next(), baton::closed, );

	auto fails = s.function("st/fail").stream<int>();
	CHECK(fails.next() == 0 && fails.next() == 1);
	THROWS(fails.next(), baton::remote_error, CHECK(e.kind() == "ValueError" && e.message() == "enough"));
	REFUSED(s.call("st/fail"));
	REFUSED(s.function("st/sent").stream());
}

static void lent(const baton::session &s) {
	const auto steps_there = s.function("st/step");
	const auto here = std::this_thread::get_id();
	int own = 0, elsewhere = 0;
	const auto counted = [&](int64_t i, baton::tensor x) {
		(std::this_thread::get_id() == here ? own : elsewhere)++;
		return step(i, std::move(x));
	};
	CHECK(s.call<int>("st/apply", counted, 10) == 45 && own == 10 && elsewhere == 0);
	CHECK(s.call<int>("st/apply", step, 10) == 45 && s.call<int>("st/apply", steps(counted), 10) == 45 && own == 20);
	CHECK(s.function("st/apply").submit(counted, 10).result<int>() == 45 && own == 20 && elsewhere == 10);
	CHECK(s.call<int>("st/apply", [&](int64_t i, baton::tensor x) { return steps_there.call<int64_t>(i, x); }, 10) == 45);
	CHECK(s.call<int>("st/apply", [&](const baton::args &all) { return all[0]; }, 0) == 0);
	auto moved = std::make_unique<int>(0);
	const int *calls = moved.get();
	const auto once = baton::value::function([moved = std::move(moved)](int64_t i, baton::tensor x) {
		++*moved;
		return step(i, std::move(x));
	});
	CHECK(s.call<int>("st/apply", once, 10) == 45 && *calls == 10 && once.kind() == baton::kind::function);
	CHECK(s.call<int>("st/apply", steps_there, 10) == 45 && s.call<int>("st/apply", baton::value::named_function("st/step"), 10) == 45);

	const auto refuses = [](int64_t, const baton::tensor &) -> int64_t { throw baton::failure("ValueError", "no step"); };
	THROWS(s.call("st/apply", refuses, 10), baton::remote_error, CHECK(e.kind() == "ValueError" && e.message() == "no step"));
	const auto odd = [](int64_t) { return 0; };
	THROWS(s.call("st/apply", odd, 10), baton::remote_error, CHECK(e.message().find("takes 1 argument") != std::string::npos));
	REFUSED(s.call("st/apply", steps(), 10));

	s.call("st/keep", counted);
	CHECK(s.call<std::string>("st/late") == "Closed");
	const auto same = s.call<baton::function>("st/same", steps_there);
	CHECK(same.name() == "st/step" && apply_to(s, [&](int64_t i, const baton::tensor &x) { return same.call<int64_t>(i, x); }, 7) == 7);
}

int main() {
	const char *what = std::getenv("BATON_FUNCTIONS");
	const bool serves = what && std::strcmp(what, "serve") == 0;
	try {
		baton::options o;
		o.name = serves ? "provider" : "caller";
		const auto s = baton::session::connect(o);
		if (serves) {
			serve(s);
		} else {
			streams(s);
			lent(s);
			auto dies = s.function("st/die").stream<int>(3);
			for (int i = 0; i < 3; i++)
				CHECK(dies.next() == i);
			THROWS(dies.next(), baton::provider_died, CHECK(e.pid() > 1));
			THROWS(s.call("st/sent"), baton::no_provider, );
			std::cout << "\"done\"" << std::endl;
		}
		return 0;
	} catch (const baton::error &e) {
		std::fprintf(stderr, "%s: %s\n", e.name(), e.what());
		return 1;
	}
}
