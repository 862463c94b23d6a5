/* Active lanes: a reader of many lanes passes over those whose bit is clear, and none that has something
 * for it, under TSO (a store buffer for each sender; the word is changed by locked instructions).
 *
 * Two lanes; that of sender 1 is always active. Sender 0 sends ITEMS messages, with its bit set or not.
 * After the last of them (its send has returned) sender 1 sends one, which that one has caused: its
 * stamp is the larger one.
 * marked: the bit of lane 0; turn: how often it was cleared, in the same word.
 * Sender: publish; FENCE; look at the bit; where it is clear set it.
 * Reader: read the word; another turn than before: the lane is open; bit set: the lane is open;
 *         open and bit clear: FENCE, look at the lane: nothing there: it is passed over from here on;
 *         of the open lanes take the message with the smallest stamp; two passes.
 *         It sleeps while the word shows nothing new and open lanes have nothing.
 * Reader 1 besides clears the bit, where lane 0 has nothing for it, by a swap that raises the turn.
 *
 * Checked: when nothing can happen any more each reader has everything; what was caused is not taken
 * before its cause.
 *
 * Broken variants:
 *  B_NOFENCE   no fence between publish and the look at the bit
 *  B_EARLY     the sender looks at the bit before it publishes
 *  B_NOTURN    a clear does not raise the turn
 *  B_TURNLATE  the turn is raised by a step of its own, after the clear
 *  B_BLIND     a lane is passed over without a look
 *  B_ONEPASS   a reader looks once, and takes what it has found
 *  B_STALE     the second pass goes by the word of the first
 */
#ifndef ITEMS
#define ITEMS 2
#endif
#ifndef CLEARS
#define CLEARS 2
#endif

byte pub[2];                    /* in memory */
byte buf[2]; bool held[2];      /* store buffer of each sender */
bool marked; byte turn;
bool caused;                    /* sender 0 has sent all, and says so */
byte taken[4];                  /* of reader r in lane l: 2*r+l */
bool open[2]; byte seen[2];     /* of each reader, of lane 0 */

#define HAS0(r) (taken[2*r]<pub[0])
#define HAS1(r) (taken[2*r+1]<pub[1])
#define READY(r) (turn!=seen[r] || (open[r] || marked) && HAS0(r) || HAS1(r))

proctype Memory() {
end:
  do
  :: atomic { held[0] -> pub[0]=buf[0]; held[0]=0; buf[0]=0 }
  :: atomic { held[1] -> pub[1]=buf[1]; held[1]=0; buf[1]=0 }
  od
}

proctype Sender0()
{
  byte i; bool known;
  do
  :: i<ITEMS ->
     i++;
#ifdef B_EARLY
     known=marked;
#endif
     atomic { !held[0] -> buf[0]=i; held[0]=1 };
#ifndef B_NOFENCE
     !held[0];                            /* FENCE */
#endif
#ifndef B_EARLY
     /* STEP active:look-bit: after a publish and a fence the sender looks at its bit */
     known=marked;
#endif
     /* STEP active:set-bit: a bit that is clear is set, by a locked or */
     if :: !known -> !held[0]; marked=1 :: else fi;
     known=0
  :: else -> break
  od;
  !held[0];
  caused=1
}

proctype Sender1() { caused; atomic { buf[1]=1; held[1]=1 }; !held[1] }

/* one look: which lane has the message to be taken: 0, 1, or 2 for none */
inline look(r, again) {
  if
  :: again ->
     /* STEP active:read-word: the word is read before the lanes are looked at, anew in each pass */
     atomic { b=marked; t=turn };
     /* STEP active:other-turn: where the turn is another one all lanes of the word are open */
     if :: t!=seen[r] -> open[r]=1 :: else fi;
     seen[r]=t; t=0;
     if
     :: b -> open[r]=1
     :: !b && open[r] ->
        /* STEP active:pass-over: after the word, and a fence, a lane that has nothing is passed over */
#ifdef B_BLIND
        open[r]=0
#else
        if :: HAS0(r) :: !HAS0(r) -> open[r]=0 fi
#endif
     :: else
     fi;
     b=0
  :: else
  fi;
  if
  :: open[r] && HAS0(r) -> best=0
  :: else ->
     if :: HAS1(r) -> best=1 :: else -> best=2 fi
  fi
}

proctype Reader(byte r)
{
  byte best, t, cleared; bool b;
end:
  do
  :: READY(r) ->
     look(r, 1);
#ifndef B_ONEPASS
     /* STEP active:two-passes: what was found is taken after a second look at the word and the lanes */
     if
#ifdef B_STALE
     :: best!=2 -> look(r, 0)
#else
     :: best!=2 -> look(r, 1)
#endif
     :: else
     fi;
#endif
     if
     :: best==0 -> taken[2*r]++
     :: best==1 ->
        assert(taken[2*r]==ITEMS);        /* not before its cause */
        taken[2*r+1]++
     :: else
     fi;
     best=0
  :: r==1 && cleared<CLEARS && marked && !HAS0(1) ->
     cleared++;
     /* the word as it is read here, then a look at the lane, then the swap */
     atomic { t=turn; b=marked };
     if
     :: b && !HAS0(1) ->
        /* STEP active:clear: bits are cleared and the turn is raised by one swap, where the word is what was read */
#ifdef B_NOTURN
        atomic { if :: marked && turn==t -> marked=0 :: else fi }
#else
#ifdef B_TURNLATE
        atomic { if :: marked && turn==t -> marked=0 :: else -> t=9 fi };
        if :: t!=9 -> turn=turn+1 :: else fi
#else
        atomic { if :: marked && turn==t -> marked=0; turn=turn+1 :: else fi }
#endif
#endif
     :: else
     fi;
     t=0; b=0
  od
}

/* nothing else can happen: a reader that sleeps has all */
proctype Monitor() { timeout; assert(taken[0]==ITEMS && taken[1]==1 && taken[2]==ITEMS && taken[3]==1) }

init { atomic { run Memory(); run Sender0(); run Sender1(); run Reader(0); run Reader(1); run Monitor() } }
