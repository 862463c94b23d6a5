package record

// LanesVersion is the count of changes of lanes.
func (v TopicView) LanesVersion() uint32 { return uint32(v.versions()) }
