// Functions in C++: as functions.c, by baton.hpp.

#include <baton.hpp>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <unistd.h>

#include "throws.hpp"

using namespace std::chrono_literals;

struct point {
	double x, y;
};
template <> struct baton::convert<point> {
	static std::string types() { return "tuple|list"; }
	static point from(baton::value_ref v) { return {v[0].as<double>(), v[1].as<double>()}; }
	static baton::value to(const point &p) { return std::make_pair(p.x, p.y); }
};

static baton::value same(const baton::value &x) { return x; }

// What the kind test.Own is in C++.
struct own_error : std::runtime_error {
	using std::runtime_error::runtime_error;
};

static int fails(void *message, const baton_value *, int32_t, baton_value *) {
	return baton_fail("ValueError", static_cast<std::string *>(message)->c_str(),
	                  R"({"trace":"here","cause":{"kind":"KeyError","message":"k"}})");
}

static void serve(const baton::session &s) {
	std::atomic<int64_t> sum{0};
	std::vector<baton::provided> all;
	all.push_back(s.provide("fn/same", same));
	all.push_back(s.provide("fn/given", [](const baton::args &given) {
		std::map<std::string, baton::value> named;
		int positions = 0;
		for (size_t i = 0; i < given.size(); i++) {
			if (given.name(i).empty())
				positions++;
			else
				named.emplace(given.name(i), given[std::string(given.name(i))]);
		}
		return std::make_tuple(positions, named);
	}));
	all.push_back(s.provide(
	    "fn/scale",
	    [](baton::tensor x, double by) {
		    for (float &f : x.flat<float>())
			    f *= static_cast<float>(by);
		    return x;
	    },
	    {"x", {"by", 2.0, baton::by::name}}));
	baton::function_options adds{"a", "b"};
	adds.over_nats = true;
	all.push_back(s.provide(
	    "fn/add",
	    [&](int64_t a, int64_t b) {
		    sum++;
		    return a + b;
	    },
	    adds));
	all.push_back(s.provide("fn/added", [&]() noexcept { return sum.load(); }));
	all.push_back(s.provide(
	    "fn/fail",
	    [&](std::string message) {
		    // The error of another function passes on with all that it has.
		    baton_provided *inner = nullptr;
		    baton::check(baton_provide(s.get(), "inner", nullptr, fails, &message, nullptr, &inner));
		    const baton::provided until_then(inner);
		    s.call("inner");
	    },
	    {"message"}));
	all.push_back(s.provide("fn/own", [] { throw own_error("an own error"); }));
	baton::function_options two;
	two.concurrency = 2;
	two.doc = "In C++.";
	all.push_back(s.provide(
	    "fn/hold",
	    [&] {
		    baton::current_call call;
		    CHECK(call && call.attempt() == 1 && !call.caller().empty() && !call.cancelled() && !call.wait_cancelled(0s));
		    s.set("fn/begun", {});
		    CHECK(call.left() == baton::forever);
		    call.wait_cancelled();
		    s.set("fn/cancelled", {});
		    call.check();
	    },
	    two));
	std::atomic<int> waiting{0};
	all.push_back(s.provide(
	    "fn/wait",
	    [&] {
		    baton::current_call call;
		    waiting++;
		    CHECK(call.left() <= 20ms);
		    call.wait_cancelled();
		    waiting--;
		    call.check();
	    },
	    two));
	all.push_back(s.provide("fn/waits", [&] { return waiting.load(); }));
	all.push_back(s.provide("fn/die", [] { kill(getpid(), SIGKILL); }));
	std::cout << "\"ready\"" << std::endl;
	for (std::string line; std::getline(std::cin, line);)
		;
	for (auto &p : all) {
		CHECK(!p.wait(0s) && !p.name().empty());
		p.close();
		CHECK(p.wait() && p.running() == 0);
	}
}

// What is thrown in a function of this process, and what its caller catches.
static void thrown(const baton::session &s) {
	std::string which;
	auto p = s.provide("own/throw", [&]() -> int {
		if (which == "invalid")
			throw std::invalid_argument("an argument");
		if (which == "runtime")
			throw std::system_error(std::make_error_code(std::errc::timed_out), "the disk");
		if (which == "int")
			throw 3;
		if (which == "baton")
			s.get("not/there");
		return s.call<int>("fn/fail", "from within");
	});
	const auto fails = [&](const char *how, const char *kind, const char *message) {
		which = how;
		THROWS(s.call("own/throw"), baton::remote_error, CHECK(e.kind() == kind && e.message().find(message) != std::string::npos));
	};
	fails("invalid", "std::invalid_argument", "an argument");
	fails("runtime", "std::runtime_error", "the disk");
	fails("int", "exception", "no std::exception");
	fails("baton", "baton.NotFound", "not/there");
	fails("", "ValueError", "from within");
	CHECK(std::string(baton_last_detail("function")) == "own/throw" && std::string(baton_last_detail("cause/kind")) == "KeyError");

	auto q = s.provide("own/point", [](point at, std::optional<std::string> name, std::vector<int8_t> all) {
		return std::make_tuple(point{at.y, at.x}, name.value_or("none"), all.size());
	});
	CHECK(s.function("own/point").signature() ==
	      "(x0: tuple|list, x1: str|none, x2: list|tuple, /) -> tuple|list");
	auto [back, name, n] = s.call<std::tuple<point, std::string, size_t>>("own/point", point{1, 2.5}, nullptr, std::vector<int>{1, 127});
	CHECK(back.x == 2.5 && back.y == 1 && name == "none" && n == 2);
	THROWS(s.call("own/point", point{1, 2}, "a", std::vector<int>{128}), baton::remote_error,
	       CHECK(e.kind() == "baton.InvalidArgument" && e.message().find("the argument x2") == 0));
	REFUSED(s.call("own/point", 1, 2, 3));
	REFUSED(s.provide("own/other", [](int) {}, {"a", "b"}));
	THROWS(s.provide("own/point", [] {}), baton::conflict, );

	// Another provider takes its place.
	auto other = s.reopen();
	baton::function_options taking;
	taking.replace = true;
	auto r = other.provide("own/throw", [] { return 8; }, taking);
	CHECK(p.wait() && s.call<int>("own/throw") == 8);
	CHECK(s.remove_function("own/throw") == 1 && r.wait());
	THROWS(s.call("own/throw"), baton::no_provider, CHECK(e.code() == BATON_NO_PROVIDER));
	THROWS(s.remove_function("own/none"), baton::not_found, );
}

static void values(const baton::session &s, const baton::tensor &x) {
	const auto back = [&](const baton::value &v) { return s.call("fn/same", v); };
	CHECK(back({}).is_none() && back(true).as<bool>() && back(-3).as<int8_t>() == -3 && back(0.5f).as<double>() == 0.5);
	CHECK(back(UINT64_MAX).as<uint64_t>() == UINT64_MAX && back(baton::value::integer("-1180591620717411303424")).digits() == "-1180591620717411303424");
	CHECK(back(std::string("a\0b", 3)).as<std::string>() == std::string("a\0b", 3));
	CHECK(back(std::vector<std::byte>(3, std::byte{255})).as<std::vector<std::byte>>().size() == 3);
	CHECK(back(x).as<baton::tensor>().data() == x.data());
	const auto dtype = back(x.dtype()); // in Python it is a text
	CHECK(dtype.kind() == baton::kind::text || baton::same(dtype.as<DLDataType>(), x.dtype()));
	const std::map<std::string, std::vector<double>> map{{"a", {1, 2.5}}, {"b", {}}};
	CHECK((back(map).as<std::map<std::string, std::vector<double>>>() == map));
	auto nested = back(baton::value::list({1, baton::value::tuple({"x", nullptr}), baton::value::pairs({{3, x}})}));
	CHECK(nested.kind() == baton::kind::list && nested.size() == 3 && nested[1].kind() == baton::kind::tuple && nested[1][1].is_none());
	CHECK(nested[2].key(0).as<int>() == 3 && nested[2][0].as<baton::tensor>().data() == x.data());
	auto [one, two] = back(std::make_pair(1, "two")).as<std::pair<int, std::string>>();
	CHECK(one == 1 && two == "two");

	// Values are read as what they are, and nothing else.
	baton::value text = "text", copy = text, number = 256;
	CHECK(copy.as<std::string_view>().data() == text.as<std::string_view>().data()); // the same
	REFUSED(text.as<int>());
	REFUSED(number.as<uint8_t>());
	REFUSED(number.as<bool>());
	REFUSED(number.as<std::vector<int>>());
	REFUSED(baton::value(-1).as<uint32_t>());
	REFUSED(baton::value("\xff"));
	THROWS(nested[3], baton::not_found, );
	THROWS(nested["k"], baton::not_found, );
	CHECK(!nested.find("k") && baton::value::dict({{"k", 7}}).find("k")->as<int>() == 7 && text.class_name().empty());
	CHECK(baton::value::dataclass("m:C", {{"f", 1}}).class_name() == "m:C");
	copy = std::move(text);
	CHECK(text.is_none() && copy.as<std::string>() == "text"); // NOLINT: what was moved from is looked at
	copy = copy;
	CHECK(copy.as<std::string>() == "text");
}

static void calls(const baton::session &s) {
	auto x = s.alloc<float>({3});
	for (int i = 0; i < 3; i++)
		x.as<float>()(i) = static_cast<float>(i + 1);
	values(s, x);
	auto given = s.call("fn/given", 1, 2, baton::arg("k", 3));
	CHECK(given[0].as<int>() == 2 && given[1]["k"].as<int>() == 3);
	CHECK(s.call<baton::tensor>("fn/scale", x, baton::arg("by", 3)).data() == x.data() && x.as<float>()(2) == 9);
	s.call<void>("fn/scale", x);
	CHECK(x.as<float>()(2) == 18);

	const int before = s.call<int>("fn/added");
	CHECK(s.call<int>("fn/add", 2, true) == 3 && s.call<int64_t>("fn/add", baton::arg("b", 1), baton::arg("a", 2)) == 3);
	REFUSED(s.call("fn/add", "2", 1));
	REFUSED(s.call("fn/add", 2.0, 1));
	if (s.function("fn/add").signature().find("int64") != std::string::npos) // Python's are of any size
		REFUSED(s.call("fn/add", baton::value::integer("1180591620717411303424"), 1));
	REFUSED(s.call("fn/add", x, 1));
	REFUSED(s.call("fn/add", 1));
	REFUSED(s.call("fn/add", 1, 2, 3));
	REFUSED(s.call("fn/add", 1, baton::arg("c", 2)));
	REFUSED(s.call("fn/add", 1, baton::arg("a", 2)));
	REFUSED(s.call<std::string>("fn/add", 1, 2));
	CHECK(s.call<int>("fn/added") == before + 3);
	THROWS(s.call("fn/none"), baton::not_found, );

	THROWS(s.call("fn/fail", "no such thing"), baton::remote_error, {
		CHECK(e.kind() == "ValueError" && e.message() == "no such thing" && e.provider() == "provider");
		CHECK(e.detail()[0] == '{' && e.cause().find("KeyError") != std::string::npos);
	});
	THROWS(s.call("fn/own"), own_error, CHECK(std::string(e.what()).find("own error") != std::string::npos));
	THROWS(baton::register_error<own_error>("test.Own"), baton::conflict, );
	THROWS(baton::register_error<own_error>("baton.Own"), baton::error, CHECK(e.code() == BATON_INVALID_ARGUMENT));
	thrown(s);

	const auto marked = [&](const char *name) {
		s.get(name, baton::forever);
		s.remove(name);
	};
	auto hold = s.function("fn/hold", 60s);
	CHECK(hold.name() == "fn/hold" && hold.providers() == 1 && hold.signature().substr(0, 2) == "()" && hold.doc().size() < 100);
	auto p = hold.submit();
	marked("fn/begun");
	CHECK(!p.wait(0s));
	std::thread ends([&] { p.cancel(); });
	THROWS(p.result(), baton::cancelled, CHECK(e.code() == BATON_CANCELLED));
	ends.join();
	THROWS(p.result(), baton::closed, );
	marked("fn/cancelled");
	{
		auto dropped = hold.submit(); // its end cancels it
		marked("fn/begun");
	}
	marked("fn/cancelled");
	auto late = s.function("fn/wait").timeout(20ms);
	THROWS(late.call(), baton::timeout, CHECK(e.code() == BATON_TIMEOUT));
	while (s.call<int>("fn/waits") > 0) // until one that has begun has ended
		;

	const auto all = s.functions("fn/*");
	CHECK(all.size() == 11 && all[0].providers.size() == 1 && all[0].providers[0].name == "provider" && !all[0].idempotent);
	THROWS(s.call("fn/die"), baton::provider_died, CHECK(e.pid() == all[0].providers[0].pid && !e.reason().empty()));
	THROWS(s.function("fn/added").call(), baton::no_provider, );
}

// A function that keeps no rule: what it throws must not go on in the library.
static int throws(void *, const baton_value *, int32_t, baton_value *) { throw std::runtime_error("through the library"); }

static void breaks(const baton::session &s) {
	baton_provided *p = nullptr;
	baton::check(baton_provide(s.get(), "throws", nullptr, throws, nullptr, nullptr, &p));
	const baton::provided provided(p);
	s.call("throws");
}

int main() {
	const char *what = std::getenv("BATON_FUNCTIONS");
	const bool serves = what && std::strcmp(what, "serve") == 0;
	try {
		baton::options o;
		o.name = serves ? "provider" : "caller";
		baton::register_error<own_error>("test.Own");
		const auto s = baton::session::connect(o);
		if (what && std::strcmp(what, "break") == 0) {
			breaks(s);
		} else if (serves) {
			serve(s);
		} else {
			calls(s);
			std::cout << "\"done\"" << std::endl;
		}
		return 0;
	} catch (const baton::error &e) {
		std::fprintf(stderr, "%s: %s\n", e.name(), e.what());
		return 1;
	}
}
