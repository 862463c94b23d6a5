package topics

// EachOfNames calls f for every storage that a name has.
func (ts *Topics) EachOfNames(f func(index uint32)) {
	for _, t := range ts.used() {
		if t != nil && t.name != nil && t.name.set {
			for _, index := range t.name.indices {
				f(index)
			}
		}
	}
}
