/* Wait sets: an item wakes one of those that sleep in a group, and none is slept over,
 * under TSO (a store buffer for each sender; the bits are changed by locked instructions).
 *
 * SENDERS senders, ITEMS items each; two takers, one of which may stop waiting at any
 * time. WORDS=1: both takers stand in one word of the set; 2: each in a word of its own.
 * member: the takers' bits; word: which words may not be 0; bell: the futex word of each taker.
 * Sender: publish; FENCE; of the words whose bit is set: clear the bit of one member; the
 *         one that has cleared it tidies, where the word is 0 now, and rings.
 * Tidy:   clear the bit of the word; look at the word again: if it is not 0 set the bit
 *         again and ring the member that stands there.
 * Taker:  look; read the bell; set its own bit; set the bit of the word; look again;
 *         futex_wait, if the bell was not rung since; clear its own bit (and tidy).
 *         One that stops waiting while an item is there claims and rings another.
 *
 * Checked: when nothing can happen any more no item is left, unless no member waits.
 *
 * Broken variants:
 *  B_NOFENCE    no fence between publish and the look at the words
 *  B_LATE       second look before the bits are set
 *  B_WORDFIRST  the bit of the word is set before the member's
 *  B_NOLOOK     tidy does not look at the word again
 *  B_NORING     tidy sets the bit again and does not ring
 *  B_NOPASS     one that stops waiting does not pass on
 *  B_NOVALUE    futex_wait does not compare the bell
 */
#ifndef SENDERS
#define SENDERS 2
#endif
#ifndef ITEMS
#define ITEMS 1
#endif
#ifndef WORDS
#define WORDS 1
#endif
#define W(t) ((t)%WORDS)
#if WORDS==1
#define EMPTY(w) (!member[0] && !member[1])
#else
#define EMPTY(w) (!member[w])
#endif

byte pub[SENDERS], taken[SENDERS];       /* in memory */
byte buf[SENDERS]; bool held[SENDERS];   /* store buffer of each sender */
bool member[2], word[WORDS], asleep[2], gone[2];
bool bell[2];

#if SENDERS==1
#define PENDING (taken[0]<pub[0])
#else
#define PENDING (taken[0]<pub[0] || taken[1]<pub[1])
#endif

/* the bell counts on and on; here it says whether it was rung since its taker read it */
#define RING(t) bell[t]=1; asleep[t]=0 /* futex_wake, a later instruction */

/* tidy of word w, which the caller has seen empty */
inline tidy(w) {
  /* STEP waits:tidy: the bit of a word without members is cleared, then the word is looked at again */
  word[w]=0;
#ifndef B_NOLOOK
  if
  :: !EMPTY(w) ->
     word[w]=1;
#ifndef B_NORING
     if :: member[0] && W(0)==w -> RING(0) :: else fi;
     if :: member[1] && W(1)==w -> RING(1) :: else fi
#endif
  :: else
  fi
#endif
}

/* claim one member, the order being any, and ring it */
inline ring_one() {
  if
  :: word[W(0)] -> t=0
  :: word[W(1)] -> t=1
  :: else -> t=2
  fi;
  do
  :: t<2 ->
     /* STEP waits:claim: the sender that clears a member's bit, and no other, rings it */
     atomic { got=member[t]; last=0; if :: got -> member[t]=0; last=EMPTY(W(t)) :: else fi };
     if
     :: got ->
        if :: last -> tidy(W(t)) :: else fi;
        /* STEP waits:ring-one: of a group's set one session is rung for each message */
        RING(t);
        break
     :: else ->
        if
        :: !tried -> tried=1; t=1-t; if :: word[W(t)] :: else -> break fi
        :: else -> break
        fi
     fi
  :: else -> break
  od;
  t=0; got=0; last=0; tried=0
}

proctype Memory() {
end:
  do
  :: atomic { held[0] -> pub[0]=buf[0]; held[0]=0; buf[0]=0 }
#if SENDERS>1
  :: atomic { held[1] -> pub[1]=buf[1]; held[1]=0; buf[1]=0 }
#endif
  od
}

proctype Sender(byte s)
{
  byte i, t; bool got, last, tried;
  do
  :: i<ITEMS ->
     i++;
     atomic { !held[s] -> buf[s]=i; held[s]=1 };
#ifndef B_NOFENCE
     !held[s];                            /* FENCE */
#endif
     ring_one()
  :: else -> break
  od
}

proctype Taker(byte me)
{
  byte t; bool got, last, tried, stop;
  do
  :: atomic { taken[0]<pub[0] -> taken[0]++ }
#if SENDERS>1
  :: atomic { taken[1]<pub[1] -> taken[1]++ }
#endif
  :: !PENDING ->
#ifdef B_LATE
     if :: PENDING -> goto cont :: else fi;
#endif
     /* STEP waits:read-bell: the bell is read before the bits are set, and is the value that the futex compares */
     bell[me]=0;
#ifdef B_WORDFIRST
     if :: !word[W(me)] -> word[W(me)]=1 :: else fi;
#endif
     /* STEP waits:wait-member: the member's own bit, then that of the word, then a fence and the second look */
     member[me]=1;
#ifndef B_WORDFIRST
     /* STEP waits:wait-word: the bit of the word is set after that of the member */
     if :: !word[W(me)] -> word[W(me)]=1 :: else fi;
#endif
#ifndef B_LATE
     if :: PENDING -> goto wake :: else fi;
#endif
#ifdef B_NOVALUE
     asleep[me]=1;
#else
     atomic { if :: !bell[me] -> asleep[me]=1 :: else fi };
#endif
endasleep:
     if
     :: !asleep[me]
#ifndef NOSTOP
     :: me==0 -> asleep[me]=0; stop=1    /* its time is over */
#endif
     fi;
wake:
     atomic { got=member[me]; last=0; if :: got -> member[me]=0; last=EMPTY(W(me)) :: else fi };
     if :: last -> tidy(W(me)) :: else fi;
     got=0; last=0;
     if
     :: stop ->
        gone[me]=1;
#ifndef B_NOPASS
        if :: PENDING -> ring_one() :: else fi;
#endif
        break
     :: else
     fi
#ifdef B_LATE
     ;
cont: skip
#endif
  od
}

/* nothing else can happen: a member that waits has slept over what is left */
proctype Monitor() { timeout; assert(!PENDING || gone[0] && gone[1]) }

init { atomic { run Memory(); run Sender(0);
#if SENDERS>1
  run Sender(1);
#endif
  run Taker(0); run Taker(1); run Monitor() } }
