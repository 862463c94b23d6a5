/* A group of two members on one lane with backpressure: claim words, hint,
 * at-most-once or ack (-DACK), death of one of writer / members at any step,
 * broker repair that may itself die and start again.
 *
 * claim word of slot k: (number, state, member) in one 64-bit word
 * next: hint where to look first: (version, number) in one 64-bit word
 * Storage of message i is i%NSTO; its count is that of the writer + those of the members.
 *
 * Checked: no message delivered twice (ack: twice only if the first member
 * died before its ack), a delivered storage has the right generation, no
 * message lost except by the death of an at-most-once claimer, writer never
 * overwrites what is not claimed, no process blocked without end.
 *
 * Broken variants:
 *  B_CURSOR    the cursor is moved first, the identity written afterwards
 *  B_NOVERSION the hint has no version
 *  B_REFAFTER  reference taken after the claim
 *  B_NOBP      writer ignores claims
 *  B_NOFREE    broker does not free the claims of the dead
 *  B_NOHINT    new broker trusts the hint after the previous one died
 */
#ifndef MSGS
#define MSGS 3
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef BCRASHES
#define BCRASHES 0
#endif
#ifndef D
#define D 2                /* depth: messages kept */
#endif
#define P (D+1)            /* slots */
#define NSTO (D+1)
#define FREE 0
#define CLAIMED 1
#define DONE 2
#define W 2                /* refcounts of the writer; 0,1 members */
byte cn[P], cs[P], cm[P];  /* claim words */
byte nn = 1, nv;           /* hint */
byte sseq[P]; byte head;   /* lane */
byte cnt[4*NSTO];          /* refcounts: 0,1 members, 2 writer, 3 broker */
#define C(r,s) cnt[(r)*NSTO+(s)]
byte gen[NSTO];
bool closed;               /* broker page: writer finished or dead, lane adopted */
bool crashed[3], fin[3];
byte delivered[MSGS+1], acked[MSGS+1], lostby[MSGS+1]; bool redo[MSGS+1];
byte dfail;

#define isfree(s) (C(0,s)==0 && C(1,s)==0 && C(2,s)==0 && C(3,s)==0)

proctype Writer()
{
  byte i, k, j;
  {
  i=1;
  do
  :: i<=MSGS ->
     /* storage for message i: recycled by the double collect of lanes.pml, one step here */
     atomic { isfree(i%NSTO) -> gen[i%NSTO]=gen[i%NSTO]+1; C(W,i%NSTO)=1 }
#ifndef B_NOBP
     /* STEP group:wait-done: before the sender reuses a slot, every group must be DONE with the message that leaves */
     if /* message j=i-D leaves when i is published: every reliable group must be done with it */
     :: i<=D
     :: else -> j=i-D; cn[j%P]==j && cs[j%P]==DONE   /* waits; see wake.pml */
     fi;
#endif
     sseq[i%P]=i;
     head=i;
     if
     :: i>D -> j=i-D; sseq[j%P]=0; C(W,j%NSTO)=C(W,j%NSTO)-1
     :: else
     fi;
     atomic { i++; j=0 }
  :: else -> break
  od;
  fin[W]=1
  } unless { crashed[W] }
}

proctype Member(byte me)
{
  byte n, v, i, wn, ws, wm, st, g;
  {
  skip;
look:
  atomic { n=nn; v=nv; i=n; wn=0; ws=0; wm=0; st=0; g=0 }
  do
  :: i>head ->
     if /* nothing to claim: wait, or leave when the lane is closed and everything is done */
     :: i<=head || nv!=v || nn!=n
     :: closed && i>head && nv==v &&
#ifdef ACK
        (cn[0]==0 || cs[0]==DONE) && (cn[1]==0 || cs[1]==DONE) && (cn[P-1]==0 || cs[P-1]==DONE) &&
        (head==0 || cn[head%P]==head)
#else
        true
#endif
        -> goto leave
     fi;
     goto look
  :: else ->
     /* STEP group:claim-read: one read of the claim word; its value is what the compare-and-swap asks for */
     atomic { wn=cn[i%P]; ws=cs[i%P]; wm=cm[i%P] }
     if
     :: wn>i || (wn==i && ws!=FREE) -> i++          /* another member's */
     :: else ->
#ifdef B_CURSOR
        if
        :: atomic { nn==i -> nn=i+1 }
           st=i%NSTO; atomic { C(me,st)=C(me,st)+1; g=gen[st] }
           atomic { cn[i%P]=i; cs[i%P]=CLAIMED; cm[i%P]=me; delivered[i]=delivered[i]+1 }
           goto have
        :: else -> goto look
        fi;
#endif
        if
        :: sseq[i%P]==i ->
           /* STEP group:take-first: the reference is taken (count up, look again) before the claim */
           st=i%NSTO;
#ifndef B_REFAFTER
           C(me,st)=C(me,st)+1;
#endif
           if
           :: sseq[i%P]==i -> g=gen[st]
           :: else ->
#ifndef B_REFAFTER
              C(me,st)=C(me,st)-1;
#endif
              goto look
           fi;
           /* STEP group:claim-cas: number, state and member change in one compare-and-swap of the word read before; lost: undo the reference */
           if
           :: atomic { cn[i%P]==wn && cs[i%P]==ws && cm[i%P]==wm ->
              cn[i%P]=i; cm[i%P]=me;
#ifdef ACK
              cs[i%P]=CLAIMED;
              assert(delivered[i]==0 || redo[i]);
#else
              cs[i%P]=DONE;
              assert(delivered[i]==0);
#endif
              redo[i]=0; delivered[i]=delivered[i]+1 }
              /* STEP group:hint-cas: the hint moves on if number and version are those read at the start */
              if                                      /* move the hint; failing does not matter */
#ifdef B_NOVERSION
              :: atomic { nn==n -> nn=i+1 }
#else
              :: atomic { nn==n && nv==v -> nn=i+1 }
#endif
              :: else
              fi;
#ifdef B_REFAFTER
              C(me,st)=C(me,st)+1;
#endif
              goto have
           :: else ->
#ifndef B_REFAFTER
              C(me,st)=C(me,st)-1;
#endif
              goto look
           fi
        :: else -> goto look       /* overwritten or withdrawn; cannot stay so with backpressure */
        fi
     fi
  od;
have:
  assert(gen[st]==g);              /* use */
  skip;
  assert(gen[st]==g);
#ifdef ACK
  /* STEP group:ack-cas: the release of an acknowledged item turns the member's own CLAIMED into DONE */
  atomic { cn[i%P]==i && cs[i%P]==CLAIMED && cm[i%P]==me -> cs[i%P]=DONE; acked[i]=acked[i]+1; assert(acked[i]==1) }
#else
  acked[i]=acked[i]+1;
#endif
  C(me,st)=C(me,st)-1;
  goto look;
leave:
  fin[me]=1
  } unless { crashed[me] }
}

bool bcrash; byte bdeaths;
proctype Broker()
{
  byte d, k, t; bool started;
again:
  {
  if
  :: started -> /* a new broker: rewind every hint, redo every repair */
#ifndef B_NOHINT
     /* STEP group:restart-hint: a new broker rewinds every hint and raises its version */
     d_step { nn=(head>P -> head-P+1 : 1); nv=nv+1 };
#endif
     started=0
  :: else
  fi;
  do
  :: crashed[0] && !fin[0] -> d=0; goto repair
  :: crashed[1] && !fin[1] -> d=1; goto repair
  :: crashed[W] && !fin[W] -> /* adopt the lane: raise the broker's refcounts, then drop those of the dead session */
     k=0; do :: k<P -> if :: sseq[k]!=0 -> C(3,sseq[k]%NSTO)=1 :: else fi; k++ :: else -> break od;
     k=0; do :: k<NSTO -> C(W,k)=0; k++ :: else -> break od;
     atomic { fin[W]=1; k=0 }
  :: fin[W] && !closed -> closed=1; k=0
  :: fin[0] && fin[1] && fin[W] && closed -> goto end
  od;
repair:
#if defined(ACK) && !defined(B_NOFREE)
  /* STEP group:free-claims: what the dead had CLAIMED becomes FREE, the hint falls to it and its version rises */
  k=0;
  do
  :: k<P ->
     if
     :: cs[k]==CLAIMED && cm[k]==d ->
        t=cn[k];
        atomic { cs[k]=FREE; redo[t]=1 }
        d_step { nn=(nn<t -> nn : t); nv=nv+1 }
     :: else
     fi; k++
  :: else -> break
  od;
#endif
  k=0; do :: k<NSTO -> C(d,k)=0; k++ :: else -> break od;
  atomic { fin[d]=1; d=0; k=0; t=0 }; goto again
  } unless { bcrash };
  atomic { bcrash=0; started=1; d=0; k=0; t=0 };
  goto again;
end: skip
}

proctype Reaper()
{
  byte deaths;
  do
#ifndef NOWCRASH
  :: atomic { deaths<CRASHES && !fin[W] -> deaths++; crashed[W]=1 }
#endif
  :: atomic { deaths<CRASHES && !fin[0] && !crashed[0] -> deaths++; crashed[0]=1 }
  :: atomic { deaths<CRASHES && !fin[1] && !crashed[1] -> deaths++; crashed[1]=1 }
  :: atomic { bdeaths<BCRASHES && !bcrash && !(fin[0] && fin[1] && fin[W] && closed) -> bdeaths++; bcrash=1 }
  :: fin[0] && fin[1] && fin[W] && closed && !bcrash -> break
  od
}

proctype Auditor()
{
  byte i, n;
  atomic { fin[0] && fin[1] && fin[W] && closed && !bcrash ->
  i=1; n=0;
  do
  :: i<=head ->
#ifdef ACK
     assert(acked[i]==1);
#else
     assert(delivered[i]==1);
#endif
     i++
  :: else -> break
  od;
  assert(crashed[W] || head==MSGS) }
}

init { atomic { run Writer(); run Member(0); run Member(1); run Broker(); run Reaper(); run Auditor() } }
