// Baton in C++17: hands tensors to other processes of this machine without copying them.
//
// It is baton.h with objects that release themselves, exceptions, typed views and std::chrono, and nothing
// else: no code of its own is in the library. docs/c.md has the whole story.
//
//     baton::session session = baton::session::connect();
//     baton::tensor x = session.alloc<float>({2, 3});
//     x.as<float>()(1, 2) = 7;
//     session.queue("work").put({{"x", x}});
//
// Ownership: every object is the only owner of what it has and may be moved, not copied. Objects may end in any
// order: each keeps what it needs, and a tensor outlives its message and its session. get() lends the C object to
// functions of baton.h; release() gives it away.
//
// Threads: any thread may call functions of an object beside others. Moving and ending it is for one alone.
//
// Errors: an object of baton::error, or of a class below it, is thrown (error.hpp). An object that was moved
// from is as NULL in C: BATON_INVALID_ARGUMENT.
//
// Times: std::chrono durations. A wait of 0 only looks, baton::forever waits without end.

#ifndef BATON_HPP
#define BATON_HPP

#include "baton/channel.hpp"
#include "baton/error.hpp"
#include "baton/function.hpp"
#include "baton/message.hpp"
#include "baton/provide.hpp"
#include "baton/session.hpp"
#include "baton/tensor.hpp"
#include "baton/value.hpp"

#endif
