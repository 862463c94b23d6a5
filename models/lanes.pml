/* Ledger + lanes: references, recycling, generations, death of one client at
 * any step, death and restart of the broker at any step.
 *
 * NS sessions; each owns its refcounts and one lane (depth 1, two slots).
 * Session 0 also owns the NST storages and recycles them without the broker.
 * Refcounts NS belong to the broker. SENDERS and TAKERS are bit masks of sessions.
 *
 * Checked: a storage is never recycled while a process holds it or while a
 * valid slot names it (asserts), a successful take names a live storage of
 * the right generation (assert), when all is quiet every refcount word is zero
 * (assert in Auditor) and the next free test of each storage succeeds, no process is blocked without end
 * (invalid end states).
 *
 * Broken variants (must be rejected):
 *  B_NOSEQ      free test compares counts only
 *  B_SINGLE     one collect instead of two
 *  B_NORECHECK  taker does not look at the slot again
 *  B_DROPFIRST  writer drops its count before it un-names the slot
 *  B_REPAIR     broker drops the dead refcounts before it adopts the dead lane
 *  B_NODROP     broker forgets the dead refcounts
 *  B_REBUILD    new broker lowers its refcounts before the dead lanes are counted
 *  B_GENLATE    no RETIRING mark: generation changes only after the test
 */
#ifndef NS
#define NS 2
#endif
#ifndef NST
#define NST 1
#endif
#ifndef OPS                             /* how often each session may allocate, send, take or open */
#define OPS 4
#endif
#ifndef OPS0                            /* the owner */
#define OPS0 OPS
#endif
#ifndef SENDERS
#define SENDERS 255
#endif
#ifndef TAKERS
#define TAKERS 255
#endif
#ifndef OPENERS
#define OPENERS 0
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef BCRASHES
#define BCRASHES 0
#endif
#ifndef MAXGEN
#define MAXGEN 2
#endif
#ifdef ONLY0
#define BWHEN (deaths>0 && !done[0])
#else
#define BWHEN true
#endif
#define BRK NS
#define NR (NS+1)
#define OWNER 0
#define NONE 255
#define HAS(m,i) (((m)>>(i))&1)

byte cnt[NR*NST], seq[NR*NST];          /* one 64-bit word each: read and written together */
#define C(r,s) cnt[(r)*NST+(s)]
#define Q(r,s) seq[(r)*NST+(s)]
byte sseq[NS*2], sst[NS*2], sgen[NS*2]; /* slots: sequence (0 = not valid), storage, generation */
#define SQ(l,k) sseq[(l)*2+(k)]
#define SS(l,k) sst[(l)*2+(k)]
#define SG(l,k) sgen[(l)*2+(k)]
byte gen[NST]; bool retiring[NST]; bool used[NST];

/* auxiliary variables and environment */
bool hold[NS*NST];
#define H(i,s) hold[(i)*NST+(s)]
bool crashed[NS]; bool done[NS];        /* done: closed, or repaired by the broker */
bool bcrash; bool quiet, still; byte deaths, bdeaths;

inline up(r,s)   { d_step { C(r,s) = C(r,s)+1; Q(r,s) = Q(r,s)+1 } }
inline down(r,s) { d_step { assert(C(r,s)>0); C(r,s) = C(r,s)-1; Q(r,s) = Q(r,s)+1 } }

proctype Session(byte me)
{
  byte q, s, g, k, l, head, ops, h, hg, os, og;
  {
  atomic { h = NONE; os = NONE; ops = (me==OWNER -> OPS0 : OPS) }
  do
  :: ops>0 && me==OWNER && h==NONE -> /* allocate: pool and refcounts belong to this process */
     if
     :: atomic { !used[0] && gen[0]<MAXGEN -> s=0 }
#if NST>1
     :: atomic { !used[1] && gen[1]<MAXGEN -> s=1 }
#endif
     :: else -> s=NONE
     fi;
     if
     :: s!=NONE -> atomic { up(me,s); used[s]=1; h=s; hg=gen[s]; H(me,s)=1; ops--; s=0 }
     :: else -> atomic { ops--; s=0 }
     fi

  :: ops>0 && h!=NONE && HAS(SENDERS,me) -> /* send */
     k = (head+1)%2;
     /* STEP lanes:send-up: count up in the session's own refcounts for each storage of the message, before the slot names it */
     up(me,h);
     atomic { SS(me,k) = h; SG(me,k) = hg; head++ }
     /* STEP lanes:send-publish: the body is written while the sequence is 0; the release store of the sequence makes it visible */
     SQ(me,k) = head;
     k = (head+1)%2;                     /* slot of the message before */
     if
     :: SQ(me,k)!=0 ->
#ifdef B_DROPFIRST
        down(me,SS(me,k)); SQ(me,k)=0
#else
        /* STEP lanes:send-unname: the sequence of the slot that leaves becomes 0 */
        SQ(me,k)=0;
        /* STEP lanes:send-drop: only then the session's own refcounts count down for what the slot named */
        down(me,SS(me,k))
#endif
     :: else
     fi;
     atomic { ops--; k=0 }

  :: SQ(me,head%2)!=0 && HAS(SENDERS,me) -> /* withdraw the message kept */
     k = head%2;
#ifdef B_DROPFIRST
     down(me,SS(me,k)); SQ(me,k)=0;
#else
     SQ(me,k)=0; down(me,SS(me,k));
#endif
     k=0

  :: ops>0 && h==NONE && HAS(TAKERS,me) -> /* take */
     atomic {
     if
     :: me!=0 -> l=0
     :: me!=1 && HAS(SENDERS,1) -> l=1
#if NS>2
     :: me!=2 && HAS(SENDERS,2) -> l=2
#endif
#if NS>3
     :: me!=3 && HAS(SENDERS,3) -> l=3
#endif
     fi;
     if :: k=0 :: k=1 fi;
     /* STEP lanes:take-look: read the sequence (acquire), then copy the references and check the copies */
     q = SQ(l,k) }
     if
     :: q!=0 ->
        atomic { s = SS(l,k); g = SG(l,k) }
        /* STEP lanes:take-up: count up in the session's own refcounts for each reference copied */
        up(me,s);
#ifdef B_NORECHECK
        if :: true
#else
        /* STEP lanes:take-recheck: the sequence again: unchanged is held, anything else undoes the counts */
        if :: atomic { SQ(l,k)==q
#endif
              -> h=s; hg=g; H(me,s)=1;
              assert(used[s] && gen[s]==g)
#ifndef B_NORECHECK
              }
#endif
           :: else -> down(me,s)
        fi
     :: else
     fi;
     atomic { q=0; s=0; g=0; l=0; k=0; ops-- }

  :: ops>0 && h==NONE && os!=NONE && HAS(OPENERS,me) -> /* open a bare handle kept from before: no place, only the generation */
     /* STEP lanes:open-up: a bare handle: count up in the session's own refcounts before any look at the generation */
     up(me,os);
     /* STEP lanes:open-recheck: held if the generation is the handle's and not RETIRING, else undo and report expired */
     if
     :: atomic { gen[os]==og && !retiring[os] -> h=os; hg=og; H(me,os)=1; assert(used[os]) }
     :: else -> down(me,os)
     fi;
     atomic { os=NONE; ops-- }

  :: h!=NONE -> /* drop */
     if :: HAS(OPENERS,me) -> os=h; og=hg :: else fi;
     /* STEP lanes:drop: a holder lets go: count down in its own refcounts, nothing else */
     atomic { H(me,h)=0; down(me,h); h=NONE; hg=0 }

  :: ops==0 && h==NONE -> break
  od;
  /* close the lane */
  k=0;
  do
  :: k<2 -> if :: SQ(me,k)!=0 -> SQ(me,k)=0; down(me,SS(me,k)) :: else fi; k++
  :: else -> break
  od;
  done[me]=1
  } unless { crashed[me] }
}

/* The owner's free test: a thread of session 0; the broker goes on with it if session 0 dies. */
proctype Collector()
{
  byte s, r, c1[NR]; bool same, mine, q0;
again:
  {
  do
  :: atomic { used[0] -> s=0; r=0; same=1; q0=still }
     goto test
#if NST>1
  :: atomic { used[1] -> s=1; r=0; same=1; q0=still }
     goto test
#endif
  :: quiet -> goto end
  od;
test:
  /* STEP lanes:collect-first: first collect: every word of the storage, remembered; any count above zero ends the test */
  do
  :: atomic { r<NR && same -> c1[r]=Q(r,s); if :: C(r,s)!=0 -> same=0 :: else fi; r++ }
  :: else -> break
  od;
  if :: !same -> goto fail :: else fi;
#ifndef B_GENLATE
  /* STEP lanes:retiring: RETIRING goes into the generation between the collects */
  retiring[s]=1;
#endif
  r=0;
#ifndef B_SINGLE
  /* STEP lanes:collect-second: second collect: every word must be the one remembered, its sequence too */
  do
  :: atomic { r<NR && same ->
       if :: C(r,s)!=0 -> same=0 :: else fi;
#ifndef B_NOSEQ
       if :: Q(r,s)!=c1[r] -> same=0 :: else fi;
#endif
       r++ }
  :: else -> break
  od;
#endif
  /* STEP lanes:next-generation: both collects equal and zero: the next generation (release), then the pool; else the mark is taken off */
  if
  :: same -> atomic {
       r=0;
       do
       :: r<NS -> assert(crashed[r] || !H(r,s));
          assert(!(SQ(r,0)!=0 && SS(r,0)==s)); assert(!(SQ(r,1)!=0 && SS(r,1)==s)); r++
       :: else -> break
       od;
       used[s]=0; gen[s]=gen[s]+1; retiring[s]=0 }
  :: else
  fi;
fail:
  atomic { assert(!q0 || !used[s]);   /* a test begun when all is quiet frees: no leak */
  q0=0; retiring[s]=0; r=0; do :: r<NR -> c1[r]=0; r++ :: else -> break od; r=0; s=0; same=0 };
  goto again
  } unless { crashed[OWNER] && !mine };
  atomic { mine=1; q0=0; retiring[0]=0;
#if NST>1
  retiring[1]=0;
#endif
  r=0; do :: r<NR -> c1[r]=0; r++ :: else -> break od; r=0; same=0 };
  goto again;
end: skip
}

#if CRASHES>0 || BCRASHES>0
byte tgt[NST];
proctype Broker()
{
  byte d, k, s; bool rebuilt; bool cntd[NS];
restart:
  {
  /* rebuild the broker's own refcounts from what is in shared pages: here the lanes of the dead. Raise first, lower last. */
  if
  :: bdeaths>0 && !rebuilt ->
     d_step { s=0; do :: s<NST -> tgt[s]=0; s++ :: else -> break od; s=0; do :: s<NS -> cntd[s]=0; s++ :: else -> break od }
#ifdef B_REBUILD
     s=0; do :: s<NST -> if :: C(BRK,s)!=0 -> d_step { C(BRK,s)=0; Q(BRK,s)=Q(BRK,s)+1 } :: else fi; s++ :: else -> break od;
#endif
     d=0;
     do
     :: d<NS ->
        if
        :: crashed[d] && !done[d] -> cntd[d]=1;
           k=0; do :: k<2 -> if :: SQ(d,k)!=0 -> tgt[SS(d,k)]=tgt[SS(d,k)]+1 :: else fi; k++ :: else -> break od
        :: else
        fi; d++
     :: else -> break
     od;
     /* STEP lanes:rebuild-raise: a new broker raises its refcounts to what names, leases and the lanes of the dead ask for */
     s=0; do :: s<NST -> if :: C(BRK,s)<tgt[s] -> up(BRK,s) :: else -> s++ fi :: else -> break od;
     /* STEP lanes:rebuild-lower: only then it lowers what is above, and refcounts of the dead go last */
     s=0; do :: s<NST -> if :: C(BRK,s)>tgt[s] -> down(BRK,s) :: else -> s++ fi :: else -> break od;
     rebuilt=1
  :: else
  fi;
  d=0;
  do /* refcounts of the dead whose lanes are counted already */
  :: d<NS -> if :: cntd[d] -> cntd[d]=0; goto dropcounts :: else -> d++ fi
  :: else -> d=0; break
  od;
  do
  :: crashed[0] && !done[0] -> d=0; goto adopt
  :: crashed[1] && !done[1] -> d=1; goto adopt
#if NS>2
  :: crashed[2] && !done[2] -> d=2; goto adopt
#endif
#if NS>3
  :: crashed[3] && !done[3] -> d=3; goto adopt
#endif
  :: quiet -> goto end
  od;
adopt:
#ifdef B_REPAIR
  s=0; do :: s<NST -> if :: C(d,s)!=0 -> d_step { C(d,s)=0; Q(d,s)=Q(d,s)+1 } :: else fi; s++ :: else -> break od;
#endif
  /* STEP lanes:adopt-count: the broker counts the valid slots of the dead up in its own refcounts */
  k=0;
  do
  :: k<2 -> if :: SQ(d,k)!=0 -> up(BRK,SS(d,k)) :: else fi; k++
  :: else -> break
  od;
dropcounts:
#ifndef B_NODROP
  /* STEP lanes:adopt-clear: only then every word of the dead refcounts becomes count 0, sequence + 1 */
  s=0; do :: s<NST -> if :: C(d,s)!=0 -> d_step { C(d,s)=0; Q(d,s)=Q(d,s)+1 } :: else fi; s++ :: else -> break od;
#endif
  /* the lane stays readable; its messages are dropped later, at any time */
  /* STEP lanes:adopt-drop: an adopted message: the sequence becomes 0, then the broker's refcounts count down */
  k=0;
  do
  :: k<2 -> if :: SQ(d,k)!=0 -> SQ(d,k)=0; down(BRK,SS(d,k)) :: else fi; k++
  :: else -> break
  od;
  atomic { done[d]=1; k=0; d=0; s=0 };
  goto restart
  } unless { bcrash };
  atomic { bcrash=0; rebuilt=0; d=0; k=0; s=0; };
  goto restart;
end: skip
}

proctype Reaper()
{
  do
  :: atomic { deaths<CRASHES && !done[0] -> deaths++; crashed[0]=1 }
#ifndef ONLY0                           /* only the owner dies, and the broker after it */
  :: atomic { deaths<CRASHES && !done[1] -> deaths++; crashed[1]=1 }
#endif
#if NS>2
  :: atomic { deaths<CRASHES && !done[2] -> deaths++; crashed[2]=1 }
#endif
#if NS>3
  :: atomic { deaths<CRASHES && !done[3] -> deaths++; crashed[3]=1 }
#endif
  :: atomic { bdeaths<BCRASHES && !bcrash && !quiet && BWHEN -> bdeaths++; bcrash=1 }
  :: quiet -> break
  od
}
#endif

proctype Auditor()
{
  byte r, s;
  atomic { (done[0] && done[1] && (NS<3 || done[(NS>2 -> 2 : 0)]) && (NS<4 || done[(NS>3 -> 3 : 0)]) && !bcrash) ->
   r=0;
   do
   :: r<NR -> s=0; do :: s<NST -> assert(C(r,s)==0); s++ :: else -> break od; r++   /* no leak */
   :: else -> break
   od;
   still=1 }
  atomic { (!used[0] && !used[NST-1] && !bcrash) -> quiet=1 }
}

init { atomic {
  byte i;
  for (i : 0 .. NS-1) { run Session(i) }
  run Collector();
#if CRASHES>0 || BCRASHES>0
  run Broker(); run Reaper();
#endif
  run Auditor()
} }
