package leases

// Each calls f for every storage that a lease holds.
func (ls *Leases) Each(f func(index uint32)) {
	for _, l := range ls.byID {
		for _, ref := range l.refs {
			f(ref.Index)
		}
	}
}
