/* A session attaches to a chunk while its owner runs the free test, which
 * visits the refcounts of attached holders only. X counts in a fresh file after X is replaced
 * by X2 (same slot, sequences start again at 0).
 *
 * Broker: bit set, E++, then the reply. Detach: refcounts emptied, bit cleared, E++.
 * Checked: nothing is recycled while held.
 * Broken: B_NOEPOCH the second collect does not read E and the bits again
 *         B_BITLATE the broker replies before it sets the bit
 *         B_NOE     bits are compared but E is not: a slot that changed hands between
 *                   the collects looks the same
 */
byte slot=1, counto=1;                /* owner's lane and refcounts */
byte slot2, count2;                   /* a second session's lane and refcounts: always attached */
byte s2;                              /* its sequence */
bool att; byte E, cx, sx;             /* X: attached, word (count, sequence) */
bool reply[2], leave[2], gone[2], hold[3], freed;

proctype X(byte n)
{
  reply[n];
  if :: slot!=0 -> d_step { cx++; sx++ }
        if :: atomic { slot!=0 -> hold[n]=1; assert(!freed) }
        :: else -> d_step { cx--; sx++ } goto out fi
     :: slot2!=0 -> d_step { cx++; sx++ }
        if :: atomic { slot2!=0 -> hold[n]=1; assert(!freed) }
        :: else -> d_step { cx--; sx++ } goto out fi
     :: true -> goto out
  fi;
  if /* hand it back to the second session through the session's own lane, shortened: it takes while X holds */
  :: atomic { count2==0 -> count2=1; s2++; hold[2]=1; assert(!freed) }
  :: true
  fi;
  atomic { hold[n]=0; cx--; sx++ }
out:
  leave[n]=1
}
proctype Y()
{ /* second session: names what it holds, drops, un-names */
  if
  :: hold[2] -> atomic { count2=count2+1; s2++ }
     slot2=1;
     atomic { hold[2]=0; count2=count2-1; s2++ }
     slot2=0;
     atomic { count2=count2-1; s2++ }
  :: leave[0] && leave[1] && !hold[2]
  fi
}
proctype Broker()
{
  byte n;
  do
  :: n<2 ->
#ifdef B_BITLATE
     reply[n]=1; att=1; E++;
#else
     /* STEP attach:bit-set: the bit is set before the reply that lets the session count */
     /* STEP attach:epoch-up: the epoch rises after each change of a bit, and before the reply */
     att=1; E++; reply[n]=1;
#endif
     leave[n];
     /* STEP attach:bit-clear: the refcounts are emptied, then the bit cleared, then the epoch rises */
     atomic { cx=0; sx=0 }            /* the next one has a fresh file */
     att=0; E++; n++
  :: else -> break
  od
}
proctype Owner()
{
  byte e, w2, wx, tries; bool a;
  slot=0; counto=0;
again:
  tries++;
  /* STEP attach:epoch-read: the free test reads the epoch, then the bits, before the first collect */
  e=E; a=att;
  if :: counto!=0 -> goto no :: else fi;
  atomic { if :: count2!=0 -> goto no :: else fi; w2=s2 }
  if :: a -> atomic { if :: cx!=0 -> goto no :: else fi; wx=sx } :: else fi;
  atomic { if :: count2!=0 || s2!=w2 -> goto no :: else fi }
  if :: a -> atomic { if :: cx!=0 || sx!=wx -> goto no :: else fi } :: else fi;
#ifndef B_NOEPOCH
  /* STEP attach:epoch-compare: after the second collect bits and epoch must be the ones read before */
  if :: att!=a -> goto no :: else fi;
#ifndef B_NOE
  if :: E!=e -> goto no :: else fi;
#endif
#endif
  atomic { freed=1; assert(!hold[0] && !hold[1] && !hold[2]); assert(slot2==0) }
  goto out;
no:
  atomic { wx=0; w2=0; if :: tries<3 -> goto again :: else fi };
out: skip
}
init { atomic { run X(0); run X(1); run Y(); run Broker(); run Owner() } }
