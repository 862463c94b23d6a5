/* The pairs of docs/memory-order.md that need sequentially consistent accesses or a full fence, a litmus test each:
 * two processes, each of which writes, then looks for what the other has written. That neither sees the other must not
 * be. With a variant B_… an access or a fence is one step weaker, and it may be.
 *
 * TEST: REFCOUNT, REFCOUNT3, PARKED, WAITING, TIDY, ACTIVE, GENERATION, CLOSING, ATTACHMENT, ERA, UNDECIDED, VERSION, CLAIM, SLOT, BODY,
 * REUSED, ADOPTED.
 */
#define X 0
#define Y 1
#define Z 2
#define L 3
#define T 3
#include "memory.inc"

#ifdef B_FIRST   /* the first one's store or addition */
#define FIRST AR
#else
#define FIRST SC
#endif
#ifdef B_LOOK    /* its look */
#define LOOK ACQ
#else
#define LOOK SC
#endif
#ifdef B_FENCE   /* its fence */
#define FENCE AR
#else
#define FENCE SC
#endif
#ifdef B_OTHER   /* the other one's fence */
#define OTHER AR
#else
#define OTHER SC
#endif
#ifdef B_MARK    /* the other one's store or addition */
#define MARK AR
#else
#define MARK SC
#endif
#ifdef B_RELEASE /* what passes on what was written before */
#define RELEASE RLX
#else
#define RELEASE REL
#endif
#ifdef B_ACQUIRE
#define ACQUIRE RLX
#else
#define ACQUIRE ACQ
#endif

byte a = 9, b = 9, c, d;

#if defined(REFCOUNT) || defined(ATTACHMENT)
/* A taker counts up in X, then looks whether Y, the slot's number or the note, is still there (0). The owner, or the
 * one that trims, takes it away, fences, and looks at the count. */
proctype P0() { add(0, X, FIRST, 1, c); rd(0, Y, LOOK, a) }
#ifdef ATTACHMENT
proctype P1() { add(1, Y, AR, 1, d); fence(1, OTHER); rd(1, X, ACQ, b) }
#else
proctype P1() { wr(1, Y, REL, 1); fence(1, OTHER); rd(1, X, ACQ, b) }
#endif
#define THREADS run P0(); run P1()
#define BAD (a == 0 && b == 0)

#elif defined(REFCOUNT3)
/* The writer, which is not the owner, un-names in Y and counts down in Z; the owner collects, fences, collects. What
 * it has seen before the fence need not be acquired: the fence does. */
proctype P0() { add(0, X, FIRST, 1, c); rd(0, Y, LOOK, a) }
proctype P1() { wr(1, Y, RLX, 1); add(1, Z, RELEASE, 1, d) }
proctype P2() { byte z; rd(2, Z, RLX, z); fence(2, OTHER); rd(2, X, ACQ, b); if :: z == 0 -> b = 9 :: else fi }
#define THREADS run P0(); run P1(); run P2()
#define BAD (a == 0 && b == 0)

#elif defined(PARKED) || defined(VERSION)
/* A waiter stores parked in X, fences, looks at Y once more. A ringer publishes in Y, fences, looks at parked.
 * The broker changes a version, fences, looks at a head; a sender publishes, fences, looks at the version. */
proctype P0() { wr(0, X, REL, 1); fence(0, FENCE); rd(0, Y, ACQ, a) }
proctype P1() { wr(1, Y, REL, 1); fence(1, OTHER); rd(1, X, ACQ, b) }
#define THREADS run P0(); run P1()
#define BAD (a == 0 && b == 0)

#elif defined(WAITING)
/* A session sets its bit in X and that of the word in Z, fences, looks at Y once more. A sender publishes in Y, fences,
 * looks at the word, then at the bit. */
proctype P0() { add(0, X, AR, 1, c); add(0, Z, AR, 1, c); fence(0, FENCE); rd(0, Y, ACQ, a) }
proctype P1() { byte z; wr(1, Y, REL, 1); fence(1, OTHER); rd(1, Z, ACQ, z); rd(1, X, ACQ, b); b = (z == 0 -> 0 : b) }
#define THREADS run P0(); run P1()
#define BAD (a == 0 && b == 0)

#elif defined(TIDY)
/* A session sets its bit in X, then looks whether the word's bit in Y is set already (0). A sender clears that, then
 * looks whether a bit has come. */
proctype P0() { add(0, X, FIRST, 1, c); rd(0, Y, LOOK, a) }
#ifdef B_BACK
proctype P1() { add(1, Y, MARK, 1, d); rd(1, X, ACQ, b) }
#else
proctype P1() { add(1, Y, MARK, 1, d); rd(1, X, SC, b) }
#endif
#define THREADS run P0(); run P1()
#define BAD (a == 0 && b == 0)

#elif defined(ACTIVE)
/* A sender publishes in Y, fences, finds its bit still set (X is 0). A reader clears it; another reader sees it
 * cleared, fences, and looks at Y. */
proctype P0() { wr(0, Y, REL, 1); fence(0, FENCE); rd(0, X, ACQ, a) }
proctype P1() { add(1, X, AR, 1, c) }
proctype P2() { rd(2, X, ACQ, d); fence(2, OTHER); rd(2, Y, ACQ, b) }
#define THREADS run P0(); run P1(); run P2()
#define BAD (a == 0 && d == 1 && b == 0)

#elif defined(GENERATION)
/* An opener counts up in X, fences, looks at the generation in Y. The owner marks it, fences, collects. */
proctype P0() { add(0, X, AR, 1, c); fence(0, FENCE); rd(0, Y, ACQ, a) }
proctype P1() { wr(1, Y, REL, 1); fence(1, OTHER); rd(1, X, ACQ, b) }
#define THREADS run P0(); run P1()
#define BAD (a == 0 && b == 0)

#elif defined(CLOSING) || defined(ERA)
/* A taker counts up in X, then looks whether the session was closed, or the era raised, in Y. The other one changes
 * that, fences, looks at the refcounts. */
proctype P0() { add(0, X, FIRST, 1, c); rd(0, Y, LOOK, a) }
proctype P1() { add(1, Y, AR, 1, d); fence(1, OTHER); rd(1, X, ACQ, b) }
#define THREADS run P0(); run P1()
#define BAD (a == 0 && b == 0)

#elif defined(UNDECIDED)
/* A taker counts up in X, then looks at the mark in Y. Another thread marks the session, then ends the connection in
 * Z; the broker reads that end and looks at the refcounts. */
proctype P0() { add(0, X, FIRST, 1, c); rd(0, Y, LOOK, a) }
#ifdef B_MARK
proctype P1() { wr(1, Y, REL, 1); wr(1, Z, REL, 1) }
#else
proctype P1() { wr(1, Y, SC, 1); wr(1, Z, REL, 1) }
#endif
proctype P2() { rd(2, Z, ACQ, d); rd(2, X, SC, b) }
#define THREADS run P0(); run P1(); run P2()
#define BAD (a == 0 && d == 1 && b == 0)

#elif defined(CLAIM)
/* A member counts up in X, then claims in Z. A writer that sees the claim un-names, fences, and looks at the count. */
proctype P0() { add(0, X, AR, 1, c); add(0, Z, RELEASE, 1, c) }
proctype P1() { rd(1, Z, ACQ, a); fence(1, OTHER); rd(1, X, ACQ, b) }
#define THREADS run P0(); run P1()
#define BAD (a == 1 && b == 0)

#elif defined(SLOT)
/* The number in Y is stored after the body in X; a thread that sees it sees that. */
proctype P0() { wr(0, X, RLX, 1); wr(0, Y, RELEASE, 1) }
proctype P1() { rd(1, Y, ACQUIRE, a); rd(1, X, RLX, b) }
#define THREADS run P0(); run P1()
#define BAD (a == 1 && b == 0)

#elif defined(REUSED)
/* The broker clears a lane's incarnation in X, then lets another session have the lane's place (Z), which stores a number
 * in Y. A reader that sees the number of the other lane must not find the incarnation of before (0). */
proctype P0() { wr(0, X, REL, 1); wr(0, Z, REL, 1) }
proctype P1() { rd(1, Z, ACQ, d); if :: d == 1 -> wr(1, Y, RELEASE, 1) :: else fi }
proctype P2() { rd(2, Y, ACQUIRE, a); rd(2, X, RLX, b) }
#define THREADS run P0(); run P1(); run P2()
#define BAD (a == 1 && b == 0)

#elif defined(ADOPTED)
/* The broker counts in X what a lane names, then says so in Y. A client that sees that counts down in Z; the owner, that
 * sees this, fences, and finds the broker's count. */
proctype P0() { add(0, X, AR, 1, c); wr(0, Y, REL, 1) }
proctype P1() { rd(1, Y, ACQUIRE, a); if :: a == 1 -> add(1, Z, RELEASE, 1, d) :: else fi }
proctype P2() { byte z; rd(2, Z, RLX, z); fence(2, SC); rd(2, X, ACQ, b); if :: z == 0 -> b = 9 :: else fi }
#define THREADS run P0(); run P1(); run P2()
#define BAD (a == 1 && b == 0)

#elif defined(BODY)
/* A writer takes the number in Y away and stores the next body in X. A reader that has copied some of that body must
 * not find the number of before (0). */
proctype P0() {
  wr(0, Y, REL, 1);
#ifndef B_RELEASE
  rel_fence(0);
#endif
  wr(0, X, RLX, 1)
}
proctype P1() {
  rd(1, X, RLX, a);
#ifndef B_ACQUIRE
  acq_fence(1);
#endif
  rd(1, Y, ACQ, b)
}
#define THREADS run P0(); run P1()
#define BAD (a == 1 && b == 0)
#endif

init {
  zeroed();
  atomic { THREADS }
  (_nr_pr == 1);
  assert(dead || !BAD) /* neither saw the other */
}
