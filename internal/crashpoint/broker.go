package crashpoint

// BrokerPoints lists the steps of a broker between which its successor may have
// to go on. A test kills a broker at each and lets the next one take over.
var BrokerPoints = []Point{
	{"broker-end-marked", "a session is marked dead, nothing else is done"},
	{"broker-end-poisoned", "a wait for its streams is released, nothing else is done"},
	{"broker-adopt-counting", "a message of the dead is counted up, its lane still the dead's"},
	{"broker-adopt-counted", "all messages of a lane are counted up, the lane is still the dead's"},
	{"broker-adopted", "a lane is adopted, the refcounts of the dead still count for it"},
	{"broker-end-left", "the dead has left a topic, its refcounts stand"},
	{"broker-end-cleared", "a part of its refcounts is empty, its bit is still set"},
	{"broker-end-detached", "refcounts and bits are cleared, its segments are still its own"},
	{"broker-end-orphaned", "its segments are orphans, names and leases stand"},
	{"broker-end-unset", "its ephemeral names are gone, its topics were not rung"},
	{"broker-end-remains", "its remains are noted, its slot is still taken"},
	{"broker-end-gone", "its slot is free"},
	{"broker-close-marked", "a session is marked closed, nothing else is done"},
	{"broker-close-left", "its part in all is over, its refcounts stand"},
	{"broker-left-marked", "a member of a group is over, and its claims stay its process's"},
	{"broker-rest-left", "a session that keeps its memory has left its topics, its leases stand"},
	{"broker-close-empty", "a closed session's refcounts were found empty, nothing else is done"},
	{"broker-hello-opened", "a session has its pages and its record, hello is not answered"},
	{"broker-hello-answered", "hello is answered, nothing says so"},
	{"broker-state-noted", "the state file says that a session came or went, no client was notified"},

	{"broker-kept-dropped", "an adopted message is un-named and still counted"},
	{"broker-lane-ending", "a lane is empty and its groups know how far it came, readers may still look"},
	{"broker-lane-cleared", "its incarnation is gone, its record is not"},
	{"broker-lane-closed", "its record says that it is closed, and is not free"},
	{"broker-lane-dropped", "an empty lane has left its topic, no client was notified"},
	{"broker-free-found", "every storage of an orphan was found free, nothing else is done"},
	{"broker-free-chunks", "its chunks are free, its segment is not"},
	{"broker-free-record", "its record is gone, its pages are not"},

	{"broker-grant-made", "a segment has a record and no chunk"},
	{"broker-chunk-attached", "a chunk's bits are set, it has no serial"},
	{"broker-attach-set", "a session is attached, and was not notified"},
	{"broker-group-listed", "a group is listed, its promise begins nowhere"},
	{"broker-reader-listed", "a reader is a member of its group, its session was not notified"},
	{"broker-lane-reset", "the claims of a number are ready for a lane that is not listed"},
	{"broker-lane-named", "a lane's record names its session, it has no incarnation"},
	{"broker-lane-listed", "a lane is listed, the version is the old one"},
	{"broker-function-registered", "a provider is listed, its session was not told"},
	{"broker-calls-released", "the calls of a dead provider are for others, or over, its callers were not rung"},
	{"broker-calls-withdrawn", "the waiting calls of a dead caller are over, its refcounts still count for them"},
	{"broker-name-held", "a revision is counted, nothing names it"},
	{"broker-name-published", "two revisions of a name stand in its lane"},
	{"broker-name-unnamed", "the older is un-named and still counted"},
	{"broker-name-deleted", "a name is deleted, the session that asked was not answered"},
	{"broker-lease-held", "a lease's storages are counted, it has no record"},
	{"broker-lease-ended", "its records are gone, it is still counted"},
	{"broker-lease-claimed", "it is over, its claim is not noted"},

	{"broker-rebuild-read", "a successor has read everything and changed nothing"},
	{"broker-rebuild-raised", "its refcounts are raised, surplus is still counted"},
	{"broker-rebuild-lowered", "its refcounts are right, hints are not rewound"},
	{"broker-rebuild-hints", "hints are rewound, the dead sessions not ended"},
	{"broker-rebuild-ended", "the dead sessions have ended, no session was rung"},
}

// HostPoints lists the steps of a broker with other hosts, between which it may die.
var HostPoints = []Point{
	{"broker-name-agreed", "hosts have agreed on a revision of a name, and it is not visible here"},
}

// HandOverPoints lists the steps of a broker that hands over to another living one
// ("handover-") and of that one ("replace-"), between which one of the two may die.
var HandOverPoints = []Point{
	{"handover-frozen", "the old broker holds all requests back, nothing is handed over"},
	{"handover-sent", "some files are handed over"},
	{"handover-marked", "the old broker has handed over, and has not said so"},
	{"replace-received", "the new broker has every file, and looked at none"},
	{"replace-checked", "the new broker could serve, and has not said so"},
	{"replace-committed", "the new broker serves, and has applied nothing"},
	{"replace-applied", "the new broker has rebuilt all, the state file is the old one's"},
}
