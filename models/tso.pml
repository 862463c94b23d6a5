/* Taking a reference against recycling under a weaker memory than SC.
 * Every process has a store buffer. Default: TSO (x86; FIFO buffer). -DPSO: stores to
 * different words may pass each other unless a release store or fence orders them.
 *
 * W names storage 0 in its slot and has count 1; it un-names, then drops.
 * R takes: refcount up; FENCE_R; look at the slot again.
 * O is the owner's free test: collect; FENCE_O; collect. With -DOWN the writer
 * is the owner and runs the test itself, its own stores still buffered.
 *
 * Checked: O never recycles while R holds.
 * Broken variants:
 *  B_NOFENCE_R  no fence between refcount up and the second look
 *  B_NOFENCE_O  no fence in the free test (matters with -DOWN)
 *  B_NORELEASE  the drop is not a release store (matters with -DPSO)
 */
byte slot=1, count_w=1, count_r;         /* memory */
bool bs, bw, br; byte vs, vw, vr;      /* buffered stores: W's slot, W's refcounts, R's refcounts */
bool holds, freed, bsfirst;

proctype Memory() {
end:
  do
  :: atomic { bs -> slot=vs; bs=0 }
#ifdef PSO
#ifdef B_NORELEASE
  :: atomic { bw -> count_w=vw; bw=0 }
#else
  /* STEP tso:release-drop: counting down releases: the un-naming before it is visible first */
  :: atomic { bw && !bs -> count_w=vw; bw=0 }   /* release: after the slot */
#endif
#else
  :: atomic { bw && !bs -> count_w=vw; bw=0 }   /* FIFO */
#endif
  :: atomic { br -> count_r=vr; br=0 }
  od
}
proctype R()
{
  byte q;
  q=slot;
  if
  :: q!=0 ->
     atomic { vr=1; br=1 }
#ifndef B_NOFENCE_R
     /* STEP tso:fence-taker: counting up is sequentially consistent: it is in memory before the slot is read again */
     !br;
#endif
     if
     :: atomic { slot==q -> holds=1; assert(!freed) }
        assert(!freed);
        atomic { holds=0; !br }
        atomic { vr=0; br=1 }
     :: else -> !br; atomic { vr=0; br=1 }
     fi
  :: else
  fi
}
#define RW (bw -> vw : count_w)         /* own refcounts: store forwarding */
inline test(own)
{
  if
  :: (own==0 || RW!=0) && (own==1 || count_w!=0) -> goto out
  :: else
  fi;
  if :: count_r!=0 -> goto out :: else fi;
#ifndef B_NOFENCE_O
  /* STEP tso:fence-owner: the owner's own un-naming and dropping are in memory before the second collect */
  if :: own==1 -> (!bs && !bw) :: else fi;
#endif
  if :: own==1 && RW!=0 || own==0 && count_w!=0 -> goto out :: else fi;
  if :: count_r!=0 -> goto out :: else fi;
  atomic { freed=1; assert(!holds) }
}
proctype Wr()
{
  atomic { vs=0; bs=1 }
  atomic { vw=0; bw=1 }
#ifdef OWN
  test(1);
#endif
out: skip
}
#ifndef OWN
proctype O() {
  test(0);
out: skip
}
#endif
init { atomic { run Memory(); run R(); run Wr();
#ifndef OWN
 run O()
#endif
} }
