/* A lane ends and its place is used anew: by a lane of another topic, or by the next
 * lane of the same number, which also gets its claims. Message numbers begin at 1 each
 * time. One slot; NST storages, one recycled for each message; a reader that looks on
 * (-DONLOOKER), MEM members of a group (at most once), each with a view of a lane as old
 * as can be.
 *
 * The broker that drops a lane and the one that lists the next are two processes: it
 * may die in between.
 * area: whose claims stand there, for the check alone.
 *
 * Checked: what is received is of the lane that the view is of and holds the generation
 * that was named; a claim is made in the area of the claimer's lane; each message of a
 * lane with a group is delivered once; no process waits without end.
 *
 * Broken variants:
 *  B_NOINC     a take does not look at the incarnation
 *  B_EARLY     it looks at it before its second look at the slot
 *  B_TRIMFIRST the place is the writer's before the incarnation is cleared
 *  B_UNBOUND   claims begin anew with each lane
 *  B_BASELATE  a member reads the base after its look at the incarnation
 */
#ifndef M
#define M 2                /* messages of a lane */
#endif
#ifndef NST
#define NST 1
#endif
#ifndef MEM
#define MEM 2
#endif
#define FREE 0
#define DONE 1
byte rec, recB;            /* incarnations in the records of the lane's number, and of one in another topic */
byte seq, src, st, sg;     /* the slot: number, whose message, its storage and generation */
byte gen[NST];
byte count[3*NST];         /* counts of the reader and the members */
#define R(m,s) count[(m)*NST+(s)]
#define isfree(s) (R(0,s)==0 && R(1,s)==0 && R(2,s)==0)
byte base, next, cn, cs = DONE; /* claims: base, that of the next lane, the claim word */
byte area;
byte asked, left;          /* by the writer: a lane to be listed, to be dropped */
bool free = 1, other, fin; /* the place is the writer's; the second lane is another topic's; all is over */
byte delivered[6];         /* by 3*lane + message */

proctype Writer()
{
  byte x, i, s;
  x=1;
  do
  :: x<=2 ->
     free; free=0; asked=x;
     if :: rec==x :: recB==x fi;
     i=1;
     do
     :: i<=M ->
        if :: i==1 || recB==x || MEM==0 :: else -> cn>base+i-1 || (cn==base+i-1 && cs==DONE) fi;
        seq=0;
        if /* lanes.pml has the free test */
        :: atomic { isfree(0) -> s=0; gen[0]=gen[0]+1 }
#if NST>1
        :: atomic { isfree(1) -> s=1; gen[1]=gen[1]+1 }
#endif
        fi;
        d_step { src=x; st=s; sg=gen[s] };
        seq=i;
        atomic { i++; s=0 }
     :: else -> break
     od;
     left=x; x++; i=0
  :: else -> break
  od
}

proctype Lister()
{
  asked==1; base=next; area=1; d_step { cn=base; cs=FREE }; rec=1;
  asked==2;
  if
  :: other=1; recB=2
  :: rec==0;               /* its number is free */
     /* STEP reuse:reset: the next lane's claims begin beyond all numbers of the one before; then the lane is listed */
     base=next; area=2; d_step { cn=base; cs=FREE }; rec=2
  fi
}

proctype Dropper()
{
  byte x;
  x=1;
  do
  :: x<=2 ->
     left==x;
     if :: recB==x || MEM==0 :: else -> cn>base+M || (cn==base+M && cs==DONE) fi;
     seq=0;
#ifndef B_UNBOUND
     /* STEP reuse:leave: how far the lane came is noted for its number's next one, before the incarnation is cleared */
     if :: recB!=x -> next=base+M+1 :: else fi;
#endif
#ifdef B_TRIMFIRST
     free=1;
#endif
     /* STEP reuse:clear: the incarnation in the record is cleared before the place is the writer's again */
     if :: recB==x -> recB=0 :: else -> rec=0 fi;
     free=1; x++
  :: else -> break
  od;
  fin=1
}

proctype Reader()
{
  byte x, i, c, k, g; bool ok;
  if :: rec!=0 -> x=rec :: fin -> goto out fi;
  if :: x==0 -> goto out :: else fi;
  i=1;
  do
  :: i<=M ->
     if
     :: seq==i ->
        d_step { c=src; k=st; g=sg }; R(0,k)=R(0,k)+1;
#ifdef B_EARLY
        ok=(rec==x); ok=ok && seq==i;
#else
        ok=(seq==i);
#ifndef B_NOINC
        /* STEP reuse:recheck: the incarnation is looked at after the second look at the slot */
        ok=ok && rec==x;
#endif
#endif
        if :: ok -> assert(c==x); assert(gen[k]==g); skip; assert(gen[k]==g) :: else fi;
        R(0,k)=R(0,k)-1; i++
     :: seq!=0 && seq!=i -> i++
     :: rec!=x || fin -> break
     fi
  :: else -> break
  od;
out: skip
}

proctype Member(byte me)
{
  byte x, b, i, c, k, g, wn, ws; bool ok;
again:
  atomic { if :: rec!=0 :: fin -> goto out fi; x=rec; b=0; i=0; c=0; k=0; g=0; wn=0; ws=0; ok=0 };
  if :: x==0 -> goto again :: else fi;
  /* STEP reuse:base: a member reads the base of its lane's claims, then looks at the incarnation */
#ifndef B_BASELATE
  b=base;
  if :: rec!=x -> goto again :: else fi;
#endif
  do
  :: seq!=0 && !ok ->
     i=seq;
     if :: i==0 -> goto next1 :: else fi;
     d_step { c=src; k=st; g=sg }; R(me,k)=R(me,k)+1;
     ok=(seq==i);
#ifndef B_NOINC
     ok=ok && rec==x;
#endif
     if :: !ok -> R(me,k)=R(me,k)-1; goto again :: else fi;
     assert(c==x);
#ifdef B_BASELATE
     b=base;
#endif
     d_step { wn=cn; ws=cs };
     if
     :: wn>b+i || (wn==b+i && ws!=FREE) -> skip          /* another member's */
     :: else ->
        /* STEP reuse:claim: one compare-and-swap of the word read before, of numbers that no other lane has */
        if
        :: atomic { cn==wn && cs==ws -> cn=b+i; cs=DONE; assert(area==x);
           delivered[3*x-3+i]=delivered[3*x-3+i]+1; assert(delivered[3*x-3+i]==1) }
           assert(gen[k]==g)
        :: else
        fi
     fi;
     R(me,k)=R(me,k)-1;
next1:
     ok=0; goto wait
  :: rec!=x -> goto again
  :: fin -> break
  od;
  goto out;
wait:
  /* until there is something new to see */
  if :: seq!=i || rec!=x || fin || (cn<b+i || cn==b+i && cs==FREE) fi;
  goto again;
out: skip
}

proctype Auditor()
{
  byte i;
  fin; i=1;
  do
  :: i<=M -> assert(MEM==0 || delivered[i]==1 && (other || delivered[3+i]==1)); i++
  :: else -> break
  od
}

init { atomic { run Writer(); run Lister(); run Dropper(); run Auditor();
#ifdef ONLOOKER
  run Reader();
#endif
#if MEM>0
  run Member(1);
#endif
#if MEM>1
  run Member(2)
#endif
} }
