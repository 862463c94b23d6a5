/* The memory of memory.inc, tried by litmus tests whose outcomes are known. Each asks for an outcome by -DTEST; where
 * RC11 forbids it the run holds, where RC11 allows it the run must fail, or the memory would be too strong.
 * Outcomes as in O. Lahav, V. Vafeiadis, J. Kang, C.-K. Hur, D. Dreyer, Repairing sequential consistency in C/C++11,
 * PLDI 2017 (SB, MP, LB, IRIW, 2+2W, RWC+syncs), and M. Batty, S. Owens, S. Sarkar, P. Sewell, T. Weber, Mathematizing
 * C++ concurrency, POPL 2011 (WRC, CoRR, the release sequence).
 *
 * TEST: MP, SB, LB, IRIW, W2 (2+2W), WRC, RWC, CORR, RS. W and R: orders of its stores and loads; F: order of the
 * fences between two accesses; FW, FR: release and acquire fences (MP).
 */
#ifndef W
#define W RLX
#endif
#ifndef R
#define R RLX
#endif
#define X 0
#define Y 1
#define L 2
#define T 4
#include "memory.inc"
#ifdef F
#define FENCE(t) fence(t, F)
#else
#define FENCE(t) skip
#endif

byte a, b, c, d;

#if defined(MP)
proctype P0() {
  wr(0, X, RLX, 1);
#ifdef FW
  rel_fence(0);
#endif
  wr(0, Y, W, 1)
}
proctype P1() {
  rd(1, Y, R, a);
#ifdef FR
  acq_fence(1);
#endif
  rd(1, X, RLX, b)
}
#define THREADS run P0(); run P1()
#define OUTCOME (a == 1 && b == 0)

#elif defined(SB) /* W2 and R2: of the second thread, where they differ */
#ifndef R2
#define R2 R
#endif
#ifndef F2
#define FENCE2(t) FENCE(t)
#else
#define FENCE2(t) fence(t, F2)
#endif
proctype P0() { wr(0, X, W, 1); FENCE(0); rd(0, Y, R, a) }
proctype P1() { wr(1, Y, W, 1); FENCE2(1); rd(1, X, R2, b) }
#define THREADS run P0(); run P1()
#define OUTCOME (a == 0 && b == 0)

#elif defined(LB)
proctype P0() { rd(0, X, R, a); wr(0, Y, W, 1) }
proctype P1() { rd(1, Y, R, b); wr(1, X, W, 1) }
#define THREADS run P0(); run P1()
#define OUTCOME (a == 1 && b == 1)

#elif defined(IRIW)
proctype P0() { wr(0, X, W, 1) }
proctype P1() { wr(1, Y, W, 1) }
proctype P2() { rd(2, X, R, a); FENCE(2); rd(2, Y, R, b) }
proctype P3() { rd(3, Y, R, c); FENCE(3); rd(3, X, R, d) }
#define THREADS run P0(); run P1(); run P2(); run P3()
#define OUTCOME (a == 1 && b == 0 && c == 1 && d == 0)

#elif defined(WW) /* 2+2W: each first store comes last in its location */
proctype P0() { wr(0, X, W, 1); FENCE(0); wr(0, Y, W, 2) }
proctype P1() { wr(1, Y, W, 1); FENCE(1); wr(1, X, W, 2) }
#define LAST(x) (msg[x*M+3].is -> msg[x*M+3].value : (msg[x*M+2].is -> msg[x*M+2].value : msg[x*M+1].value))
#define THREADS run P0(); run P1()
#define OUTCOME (LAST(X) == 1 && LAST(Y) == 1)

#elif defined(WRC)
proctype P0() { wr(0, X, W, 1) }
proctype P1() { rd(1, X, R, a); wr(1, Y, W, 1) }
proctype P2() { rd(2, Y, R, b); rd(2, X, RLX, c) }
#define THREADS run P0(); run P1(); run P2()
#define OUTCOME (a == 1 && b == 1 && c == 0)

#elif defined(RWC)
proctype P0() { wr(0, X, W, 1) }
proctype P1() { rd(1, X, R, a); FENCE(1); rd(1, Y, R, b) }
proctype P2() { wr(2, Y, W, 1); FENCE(2); rd(2, X, R, c) }
#define THREADS run P0(); run P1(); run P2()
#define OUTCOME (a == 1 && b == 0 && c == 0)

#elif defined(CORR)
proctype P0() { wr(0, X, W, 1); wr(0, X, W, 2) }
proctype P1() { rd(1, X, R, a); rd(1, X, R, b) }
#define THREADS run P0(); run P1()
#define OUTCOME (a == 2 && b == 1 || a == 1 && b == 0)

#elif defined(RS) /* a relaxed addition of a third thread goes on with a release sequence; a store does not */
proctype P0() { wr(0, X, RLX, 1); wr(0, Y, REL, 1) }
proctype P1() {
#ifdef STORE
  wr(1, Y, RLX, 2)
#else
  add(1, Y, RLX, 1, c)
#endif
}
proctype P2() { rd(2, Y, ACQ, a); rd(2, X, RLX, b) }
#define THREADS run P0(); run P1(); run P2()
#define OUTCOME (a == 2 && b == 0)
#endif

init {
  zeroed();
  atomic { THREADS }
  (_nr_pr == 1);
  assert(dead || !OUTCOME) /* the outcome that is asked for */
}
