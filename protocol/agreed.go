package protocol

// Agreed is what hosts have agreed of a revision of a name.
type Agreed struct {
	Revision uint64 // 0: nothing
	Age      uint64 // ns, when it was published here
	Bucket   uint64
}
