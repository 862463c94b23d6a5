package observe

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/baton-ipc/baton/broker/machines/names"
)

var (
	spanNamespaces = describe("span_namespaces", "Namespaces whose names are agreed on with other hosts (agreed), or are as they were last agreed since their bucket is not read (waiting).", "state")
	spanNames      = describe("span_names", "Names that are set in spanned namespaces: the newest revision is here (current), an older one or one of which that is not known (stale), or none (elsewhere).", "state")
	spanFailing    = describe("span_names_failing", "Names whose newest revision was wanted here and did not come.")
	spanStale      = describe("span_stale_seconds", "For how long a name that is set here may have had a newer revision elsewhere, at most.")
	spanSets       = describe("span_sets_total", "Sets of programs here in spanned namespaces, by how they were answered.", "outcome")
	spanTook       = describe("span_set_duration_seconds", "Time until a set was agreed on with other hosts and visible here.")
	spanCame       = describe("span_revisions_total", "Revisions of other hosts that came here: before a program asked for them (ahead), or while one waited (asked).", "why")
	spanEvicted    = describe("span_revisions_evicted_total", "Revisions that were let go here while no program had them open: for the room of others (room), or since another host has set the name anew (replaced).", "why")
)

// namesOfHosts sends what is counted of names of several hosts. Namespaces are no labels: clients make them up.
func namesOfHosts(all []names.Status, to chan<- prometheus.Metric, gauge func(*prometheus.Desc, float64, ...string), counter func(*prometheus.Desc, uint64, ...string)) {
	var sum names.Counts
	agreed, current, stale, elsewhere, failing, longest := 0, 0, 0, 0, 0, 0.0
	for i := range all {
		s := &all[i]
		sum.Add(&s.Counts)
		if s.Agreed {
			agreed++
		}
		current += s.Current
		stale += s.Stale
		elsewhere += s.Names - s.Here - s.Behind
		failing += s.Failed
		longest = max(longest, s.StaleFor)
	}
	gauge(spanNamespaces, float64(agreed), "agreed")
	gauge(spanNamespaces, float64(len(all)-agreed), "waiting")
	gauge(spanNames, float64(current), "current")
	gauge(spanNames, float64(stale), "stale")
	gauge(spanNames, float64(elsewhere), "elsewhere")
	gauge(spanFailing, float64(failing))
	gauge(spanStale, longest)
	for outcome, n := range map[string]uint64{"agreed": sum.SetsAgreed, "conflict": sum.SetsConflict, "unreachable": sum.SetsUnreachable, "refused": sum.SetsRefused} {
		counter(spanSets, n, outcome)
	}
	within := map[float64]uint64{}
	for i, n := range sum.Took {
		within[names.TookBounds[i]] = n
	}
	to <- prometheus.MustNewConstHistogram(spanTook, sum.SetsAgreed, sum.TookSeconds, within)
	counter(spanCame, sum.CameAhead, "ahead")
	counter(spanCame, sum.CameAsked, "asked")
	counter(spanEvicted, sum.EvictedRoom, "room")
	counter(spanEvicted, sum.EvictedReplaced, "replaced")
}
