/* Waiting: one bell per process, under TSO (a store buffer per process).
 *
 * Two writers, one waiter that waits on both lanes (select), MSGS messages
 * each. The same protocol serves a writer that waits for space.
 * parked: epoch, odd while parked, written by the waiter alone.
 * bell:   counter, the futex word, incremented by each ring.
 * BELLS=2: the lanes are of topics in which the waiter has a session each, with a bell and a parked word each; it
 * sleeps on both (futex_waitv), and each writer rings the session that waits in its topic.
 * Writer:  publish; FENCE; p=parked; if p odd and p!=rung: bell++, futex_wake, rung=p.
 * Waiter:  look; e=bell; parked=odd; FENCE; look again; futex_wait(bell,e); parked=even.
 * A writer may die at any step; the broker then marks the lane closed and rings
 * the bells of all sessions that wait on its topics.
 *
 * Checked: the waiter never sleeps on while a message or a closed lane is
 * there to be seen (invalid end states), every message published is received.
 *
 * Broken variants:
 *  B_NOFENCE_W  no fence between publish and the look at the bell
 *  B_NOFENCE_R  no fence between parked and the second look
 *  B_LATE       second look before parked is set
 *  B_NOVALUE    futex_wait does not compare the word
 *  B_NORING     broker does not ring when it closes a lane (death or clean end)
 *  B_CASBELL    one word: the ringer sets PARKED back to AWAKE, then wakes; if it
 *               dies (or is suspended) in between, no other process rings
 *  B_ONEBELL    it sleeps on the bell of one session alone
 *  B_LATEBELL   the bell of the second session is read after the second look
 */
#ifndef MSGS
#define MSGS 1
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef BELLS
#define BELLS 1
#endif
#define OF(w) ((w)%BELLS)     /* the session that waits in the topic of a lane */
byte lane[2];              /* messages published, in memory */
byte lbuf[2]; bool lfull[2];   /* store buffer of each writer */
byte bell[BELLS], parked[BELLS];
bool bbuf; byte bval, bat;  /* store buffer of the waiter, for parked, and of which session */
bool asleep[BELLS];
bool closed[2], crashed[2], fin[2];
byte r[2];                 /* received */

#define flushW(w) lane[w]=lbuf[w]; lfull[w]=0; lbuf[w]=0
#define flushR    parked[bat]=bval; bbuf=0; bval=0; bat=0
#define ODD(x) ((x)%2==1)


/* memory takes a buffered store whenever it likes, also after the death of its process */
proctype Memory() {
end:
  do
  :: atomic { lfull[0] -> flushW(0) }
  :: atomic { lfull[1] -> flushW(1) }
  :: atomic { bbuf -> flushR }
  od
}

proctype Writer(byte w)
{
  byte i, p, rung;
  {
  do
  :: i<(w==0 -> MSGS : 1) ->
     i++;
     atomic { !lfull[w] -> lbuf[w]=i; lfull[w]=1 }
#ifndef B_NOFENCE_W
     /* STEP wake:fence-ringer: a full fence between publishing and the look at parked sessions */
     !lfull[w];                                    /* FENCE: waits until the buffer is empty */
#endif
     atomic { p=parked[OF(w)];
     if
     :: ODD(p) && p!=rung -> skip
     :: else -> p=0; goto next
     fi }
#ifdef B_CASBELL
     if
     :: atomic { !lfull[w] && parked[OF(w)]==p -> parked[OF(w)]=p+1 }
     :: atomic { !lfull[w] && parked[OF(w)]!=p -> p=0; goto next }
     fi;
#endif
     /* STEP wake:ring: parked odd and not yet rung for: bell + 1, futex wake, remember the epoch */
     atomic { !lfull[w] -> bell[OF(w)]++ };       /* locked instruction */
     asleep[OF(w)]=0;                                  /* futex_wake, a later instruction */
     atomic { rung=p; p=0 };
next: skip
  :: else -> break
  od;
  fin[w]=1
  } unless { crashed[w] }
}

#define SEEN(w) (lane[w]!=r[w])
proctype Waiter()
{
  byte e[BELLS], me[BELLS]; bool c[2];
  do
  :: SEEN(0) -> r[0]=r[0]+1
  :: SEEN(1) -> r[1]=r[1]+1
  :: closed[0] && !c[0] -> c[0]=1
  :: closed[1] && !c[1] -> c[1]=1
  :: c[0] && c[1] && !SEEN(0) && !SEEN(1) -> break
  :: !SEEN(0) && !SEEN(1) && (!closed[0] || c[0]) && (!closed[1] || c[1]) && !(c[0] && c[1]) ->
#ifdef B_LATE
     if :: SEEN(0) || (closed[0] && !c[0]) -> goto cont :: else fi;
     if :: SEEN(1) || (closed[1] && !c[1]) -> goto cont :: else fi;
#endif
     /* STEP wake:read-bell: the bell is read before parked is set, and is the value that the futex compares */
     e[0]=bell[0];
     /* STEP wake:park: parked becomes odd; the waiter alone writes it */
     atomic { !bbuf -> me[0]++; bval=me[0]; bat=0; bbuf=1 }
#ifndef B_NOFENCE_R
     /* STEP wake:fence-waiter: a full fence between parked and the second look */
     !bbuf;                                        /* FENCE */
#endif
#if BELLS==2
#ifndef B_LATEBELL
     e[1]=bell[1];
#endif
     atomic { !bbuf -> me[1]++; bval=me[1]; bat=1; bbuf=1 }
#ifndef B_NOFENCE_R
     !bbuf;
#endif
#endif
#ifndef B_LATE
     /* STEP wake:second-look: all lanes are looked at again after parked is set */
     if :: SEEN(0) || (closed[0] && !c[0]) -> goto wake :: else fi;
     if :: SEEN(1) || (closed[1] && !c[1]) -> goto wake :: else fi;
#endif
     /* STEP wake:sleep: futex wait with the bell read before; afterwards parked becomes even */
     /* futex_wait: the system call drains the buffer, compares and sleeps under one lock */
     !bbuf;
#ifdef B_LATEBELL
     e[1]=bell[1];
#endif
#ifdef B_NOVALUE
     asleep[0]=1;
#else
     atomic { if :: bell[0]==e[0] -> asleep[0]=1 :: else fi };
#endif
#if BELLS==2
     /* futex_waitv takes one word after the other, and has been woken where one that it had taken was rung */
     atomic { if :: bell[1]==e[1] -> asleep[1]=1 :: else fi };
#ifdef B_ONEBELL
     !asleep[0];
#else
     !asleep[0] || !asleep[1];
#endif
     atomic { asleep[0]=0; asleep[1]=0 }
#else
     !asleep[0];
#endif
wake:
#if BELLS==2
     atomic { !bbuf -> me[1]++; bval=me[1]; bat=1; bbuf=1; e[1]=0 }
#endif
     atomic { !bbuf -> me[0]++; bval=me[0]; bat=0; bbuf=1; e[0]=0 }
#ifdef B_LATE
cont: skip
#endif
  od;
  assert(r[0]==lane[0] && r[1]==lane[1])
}

/* a live writer's lane is closed only when all is received: its own rings must do */
#define GONE(w) !lfull[w] && !closed[w] && (crashed[w] || (fin[w] && r[w]==lane[w]))
proctype Broker()
{
  byte w;
  do
  :: atomic { GONE(0) -> w=0 } goto close
  :: atomic { GONE(1) -> w=1 } goto close
  :: closed[0] && closed[1] -> break
  od;
  goto end;
close:
  closed[w]=1;             /* followed by a fence: a system call lies in between */
#ifndef B_NORING
#ifdef B_CASBELL
  if :: atomic { ODD(parked[OF(w)]) -> parked[OF(w)]=parked[OF(w)]+1; bell[OF(w)]++ } asleep[OF(w)]=0 :: else fi;
#else
  /* STEP wake:death-ring: after closing a lane the broker rings every session that waits on its topic, parked or not */
  bell[OF(w)]++;           /* always: a session that waits on a topic of the dead looks again */
  asleep[OF(w)]=0;
#endif
#endif
  if :: closed[0] && closed[1] :: else ->
     if
     :: atomic { GONE(0) -> w=0 } goto close
     :: atomic { GONE(1) -> w=1 } goto close
     fi
  fi;
end: skip
}

proctype Reaper()
{
  if
  :: atomic { CRASHES>0 && !fin[0] -> crashed[0]=1 }
  :: atomic { CRASHES>0 && !fin[1] -> crashed[1]=1 }
  :: true
  fi
}

init { atomic { run Memory(); run Writer(0); run Writer(1); run Waiter(); run Broker(); run Reaper() } }
