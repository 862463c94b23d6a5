package observe

import (
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/machines"
	"github.com/baton-ipc/baton/protocol"
)

// Requests counts what clients ask of the broker, and how long that takes. Its
// labels are the ops of the protocol and nothing that a client makes up.
type Requests struct {
	took   *prometheus.HistogramVec
	failed *prometheus.CounterVec
	// refused counts the lacks apart: each code is there from the start, so that the first burst of refusals is a rise.
	refused *prometheus.CounterVec
}

// lacks are the codes of requests that were refused for want of memory, or of room in a table.
var lacks = []protocol.Code{protocol.CodeQuota, protocol.CodeOutOfMemory, protocol.CodeTooMany}

// NewRequests makes one; Observe goes into the broker's configuration, the value
// itself into Options.
func NewRequests() *Requests {
	r := &Requests{
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "baton_request_duration_seconds", Help: "Time to carry out a control request, by op and outcome.",
			Buckets: prometheus.ExponentialBuckets(1e-6, 4, 11),
		}, []string{"op", "outcome"}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "baton_requests_failed_total", Help: "Control requests that ended in an error, by op and the error's code.",
		}, []string{"op", "code"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "baton_requests_refused_total", Help: "Of baton_requests_failed_total, those for want of memory or of room in a table, by code; each code from the start.",
		}, []string{"code"}),
	}
	for _, code := range lacks {
		r.refused.WithLabelValues(string(code))
	}
	return r
}

// Observe notes one request. Any goroutine.
func (r *Requests) Observe(op string, took time.Duration, code protocol.Code) {
	outcome := "ok"
	if code != "" {
		outcome = "error"
		r.failed.WithLabelValues(op, string(code)).Inc()
		if slices.Contains(lacks, code) {
			r.refused.WithLabelValues(string(code)).Inc()
		}
	}
	r.took.WithLabelValues(op, outcome).Observe(took.Seconds())
}

// newRegistry makes the metrics of one broker, with those of Go and the process.
func newRegistry(o *Options, topics, functions *atomic.Int64) *prometheus.Registry {
	r := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "baton_build_info", Help: "Version of the program and of its protocol; always 1.",
		ConstLabels: prometheus.Labels{"version": o.Version, "go": runtime.Version(),
			"protocol": strconv.Itoa(protocol.Version), "layout": strconv.Itoa(protocol.Layout)},
	})
	build.Set(1)
	r.MustRegister(build, &collector{o: o, topics: topics, functions: functions}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if o.Requests != nil {
		r.MustRegister(o.Requests.took, o.Requests.failed, o.Requests.refused)
	}
	return r
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("baton_"+name, help, labels, nil)
}

var (
	segmentBytes     = describe("segment_bytes", "Bytes of shared memory that sessions have been granted, by whether the owner still runs.", "state")
	laneBytes        = describe("lane_bytes", "Bytes of lanes, the places for what sessions send in topics, queues and functions; also of those that linger. --memory counts them.")
	memoryLimit      = describe("memory_limit_bytes", "Bytes that all segments and lanes together may have.")
	memoryHeld       = describe("memory_held_bytes", "Bytes of storages that a session or the broker holds, each storage once; in memory that was granted. The rest of that its owners keep warm, or it is about to be freed.")
	forChildrenBytes = describe("memory_for_children_bytes", "Bytes that sessions hold which keep memory for children made by fork. Part of baton_memory_held_bytes.")
	deviceBytes      = describe("device_memory_bytes", "Bytes of memory on a GPU: granted to sessions, of ended owners (orphan), held by a session or the broker.", "device", "state")
	memoryFree       = describe("memory_free_bytes", "Bytes left on the machine, or below the smallest container limit.")
	memoryLeft       = describe("memory_left_bytes", "Bytes that could be granted now, within all limits but those of a session.")
	sessions         = describe("sessions", "Sessions by state.", "state")
	forChildren      = describe("sessions_for_children", "Sessions that hold what children made by fork could not count.")
	segments         = describe("segments", "Segments.")
	storages         = describe("storages", "Storages that are held.")
	chunks           = describe("chunks", "Chunks of 128 storage indices in use.")
	topics           = describe("topics", "Topics and queues.", "kind")
	namesSet         = describe("names", "Names that are set.")
	unread           = describe("unread_pickles", "Handles in pickles that were handed over and not read: all, and those old enough to be given up where memory is refused.", "what")
	unreadOldest     = describe("unread_pickles_oldest_seconds", "Since the oldest of them was handed over.")
	givenUp          = describe("unread_pickles_given_up_total", "Handles in pickles that were given up, unread, where memory was refused.")
	leases           = describe("leases", "Handles in flight that a lease protects.")
	adopted          = describe("adopted_lanes", "Lanes of ended sessions with messages that are still kept.")
	recovering       = describe("recovering", "1 while the broker waits for the clients of the previous broker.")
	uptime           = describe("uptime_seconds", "Seconds since the broker started.")
	logLost          = describe("log_lines_lost_total", "Lines of the broker's log that were dropped: what reads the log does not keep up, or it cannot be written.")

	messages       = describe("messages_total", "Messages of all topics and queues: sent; taken, by each reader for itself; lost, overwritten before a reader had them.", "what")
	messageBytes   = describe("message_bytes_total", "Bytes of the tensors of messages that were sent.")
	waiting        = describe("messages_waiting", "Messages that some group, or taker of a queue, has not taken.")
	withoutTakers  = describe("queues_without_takers", "Queues in which items wait and from which no session takes.")
	heldUp         = describe("queue_held_up_seconds", "For how long, at most, one item that is not done with (a taker has it, or it was given back and no taker has taken it again) has kept a sender of its queue waiting, though fewer items wait than the depth, as far as scrapes have seen it.")
	unacknowledged = describe("messages_unacknowledged", "Items of queues with redelivery that a taker has and has not acknowledged.")
	kept           = describe("messages_kept", "Messages that topics and queues keep: items of a queue that its takers have released, until their sender sends again or gives memory back.")
	redelivered    = describe("messages_redelivered_total", "Items that were freed for others because their takers had left.")
	dropped        = describe("messages_dropped_total", "Messages of topics, and items of queues that no taker had finished with, that were dropped, by why: no session had the topic or queue open for its linger; a sender opened it again after its close; it was purged; it was deleted.", "kind", "reason")
	deaths         = describe("session_deaths_total", "Sessions whose processes ended without closing them.")
	takeoverTook   = describe("takeover_seconds", "Time until this broker served, of one that took over; by what it took over from.", "from")
	takeoverLost   = describe("takeover_sessions_missing", "Sessions of the previous broker that were not back five seconds after this one began to serve.")

	topicMessages       = describe("topic_messages_total", "As baton_messages_total, of one topic or queue.", "namespace", "topic", "kind", "what")
	topicBytes          = describe("topic_message_bytes_total", "As baton_message_bytes_total, of one topic or queue.", "namespace", "topic", "kind")
	topicWaiting        = describe("topic_messages_waiting", "As baton_messages_waiting, of one topic or queue.", "namespace", "topic", "kind")
	topicHeldUp         = describe("topic_held_up_seconds", "As baton_queue_held_up_seconds, of one topic or queue.", "namespace", "topic", "kind")
	topicUnacknowledged = describe("topic_messages_unacknowledged", "As baton_messages_unacknowledged, of one queue.", "namespace", "topic", "kind")

	calls        = describe("calls_total", "Calls of functions that ended, as their providers tell, by outcome.", "outcome")
	callSeconds  = describe("call_seconds_total", "Seconds that functions ran for those calls.")
	callsWaiting = describe("calls_waiting", "Calls that no provider has taken.")
	callsRunning = describe("calls_running", "Calls that providers have.")
	providers    = describe("providers", "Sessions that provide functions, each as often as it provides one.")

	functionCalls     = describe("function_calls_total", "As baton_calls_total, of one function.", "namespace", "function", "outcome")
	functionTook      = describe("function_duration_seconds", "How long one function ran for a call.", "namespace", "function")
	functionWaiting   = describe("function_calls_waiting", "As baton_calls_waiting, of one function.", "namespace", "function")
	functionRunning   = describe("function_calls_running", "As baton_calls_running, of one function.", "namespace", "function")
	functionProviders = describe("function_providers", "Sessions that provide one function.", "namespace", "function")

	hostsSpanning = describe("hosts_spanning", "1 while other hosts reach this one, with --span.")
	hostsKept     = describe("hosts_kept_bytes", "Bytes of storages of other hosts that are kept here.")
	hostsBytes    = describe("hosts_bytes_total", "Bytes of storages that came from other hosts (fetched), or were given to them (served).", "what")
	hostsFailed   = describe("hosts_fetches_failed_total", "Storages of other hosts that could not be fetched.")
	hostsRefused  = describe("hosts_refused_total", "Questions and passages of other hosts that were refused.")

	natsConnected  = describe("nats_connected", "1 while the broker is connected to NATS.")
	natsReconnects = describe("nats_reconnects_total", "Connections to NATS after the first.")
	natsPublished  = describe("nats_published_total", "Tuples handed to NATS.")
	natsDropped    = describe("nats_dropped_total", "Tuples that subscribers of NATS do not get: overwritten before the broker looked, refused by the broker or by NATS, or lost on the way there.")
	natsRefused    = describe("nats_right_refused", "1 for each right that NATS does not grant the broker.", "right")
	natsPending    = describe("nats_names_pending", "Names still to be written to their bucket or removed from it.")
	natsMirrored   = describe("nats_names_mirrored", "Names that stand in their bucket, those by reference included: while baton_nats_connected is 0, as of the last connection.")
	natsLeftOut    = describe("nats_names_left_out", "Names that are set and cannot stand in their bucket.")
	natsForeign    = describe("nats_names_foreign", "Names that are set and whose keys are another broker's, by that broker and its host.", "instance", "host")
)

// mostRights bounds how many refused rights have a metric of their own: there is one for each namespace.
const mostRights = 32

// collector reads the broker's status when it is asked.
type collector struct {
	o      *Options
	topics *atomic.Int64 // how many have metrics of their own
	// functions is the same of functions.
	functions *atomic.Int64
	mu        sync.Mutex
	// highest are the totals as they were reported: a topic that goes while they are summed is missed
	// once, and a counter must not fall.
	highest broker.TrafficStatus
	// calls is the same of the calls of all functions.
	calls struct {
		ok, failed uint64
		ran        float64 // seconds
	}
}

// traffic tells what all topics count, and of some what they count themselves.
func (c *collector) traffic(gauge func(*prometheus.Desc, float64, ...string), counter func(*prometheus.Desc, uint64, ...string)) {
	told := map[string]bool{}
	sum, ok := c.o.Traffic(func(r *broker.TopicRow) {
		// Private topics have no names, and two rows of one name may be seen while one replaces the other.
		key := r.Namespace + " " + r.Kind + " " + r.Name
		if r.Name == "" || len(told) >= int(c.topics.Load()) || told[key] {
			return
		}
		told[key] = true
		for what, n := range map[string]uint64{"sent": r.Sent, "taken": r.Taken, "lost": r.Lost} {
			counter(topicMessages, n, r.Namespace, r.Name, r.Kind, what)
		}
		counter(topicBytes, r.SentBytes, r.Namespace, r.Name, r.Kind)
		gauge(topicWaiting, float64(r.Waiting), r.Namespace, r.Name, r.Kind)
		gauge(topicHeldUp, r.HeldUpFor, r.Namespace, r.Name, r.Kind)
		gauge(topicUnacknowledged, float64(r.Unacknowledged), r.Namespace, r.Name, r.Kind)
	})
	if !ok {
		return // it is not whole
	}
	c.mu.Lock()
	h := &c.highest
	h.Sent, h.SentBytes, h.Taken, h.Lost = max(h.Sent, sum.Sent), max(h.SentBytes, sum.SentBytes), max(h.Taken, sum.Taken), max(h.Lost, sum.Lost)
	h.Redelivered = max(h.Redelivered, sum.Redelivered)
	all := *h
	c.mu.Unlock()
	counter(messages, all.Sent, "sent")
	counter(messages, all.Taken, "taken")
	counter(messages, all.Lost, "lost")
	counter(messageBytes, all.SentBytes)
	counter(redelivered, all.Redelivered)
	for d, n := range sum.Dropped {
		counter(dropped, n, d.Kind, d.Reason)
	}
	gauge(waiting, float64(sum.Waiting))
	gauge(unacknowledged, float64(sum.Unacknowledged))
	gauge(kept, float64(sum.Kept))
	gauge(withoutTakers, float64(sum.WithoutTakers))
	gauge(heldUp, sum.HeldUpFor)
}

// Describe sends every metric that Collect may send.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{segmentBytes, laneBytes, memoryLimit, memoryFree, memoryLeft, sessions, forChildren, segments, storages,
		memoryHeld, forChildrenBytes, deviceBytes, chunks, topics, namesSet, leases, unread, unreadOldest, givenUp, adopted, recovering, uptime, logLost,
		messages, messageBytes, waiting, withoutTakers, heldUp, unacknowledged, kept, redelivered, dropped, deaths, takeoverTook, takeoverLost,
		topicMessages, topicBytes, topicWaiting, topicHeldUp, topicUnacknowledged,
		calls, callSeconds, callsWaiting, callsRunning, providers,
		functionCalls, functionTook, functionWaiting, functionRunning, functionProviders,
		hostsSpanning, hostsKept, hostsBytes, hostsFailed, hostsRefused,
		spanNamespaces, spanNames, spanFailing, spanStale, spanSets, spanTook, spanCame, spanEvicted,
		natsConnected, natsReconnects, natsPublished, natsDropped, natsRefused, natsPending,
		natsMirrored, natsLeftOut, natsForeign} {
		to <- d
	}
}

// Collect sends the values as of now. Of a broker that takes over or ends only those that it has still: a zero would say
// that it has nothing.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	s := c.o.Broker()
	gauge(memoryLimit, float64(s.Memory.Limit))
	gauge(memoryFree, float64(s.Memory.Free))
	gauge(recovering, number(s.Taking))
	gauge(uptime, s.Uptime)
	if c.o.LogStatus != nil {
		counter(logLost, c.o.LogStatus().Lost)
	}
	if s.Serves() {
		status(&s, gauge, counter)
	}
	if c.o.Traffic != nil {
		c.traffic(gauge, counter)
	}
	if c.o.Calls != nil {
		c.functionCalls(to)
	}
	if c.o.Hosts != nil {
		if h := c.o.Hosts(); h != nil {
			gauge(hostsSpanning, number(h.State == machines.StateSpanning))
			gauge(hostsKept, float64(h.Kept.Bytes))
			counter(hostsBytes, h.FetchedBytes, "fetched")
			counter(hostsBytes, h.ServedBytes, "served")
			counter(hostsFailed, h.Failed)
			counter(hostsRefused, h.Refused)
		}
	}
	if c.o.Names != nil {
		if all := c.o.Names(); all != nil {
			namesOfHosts(all, to, gauge, counter)
		}
	}
	if c.o.NATS == nil {
		return
	}
	n := c.o.NATS()
	if n == nil {
		return
	}
	gauge(natsConnected, number(n.Connected))
	gauge(natsPending, float64(n.Names.Pending))
	gauge(natsMirrored, float64(n.Names.Mirrored))
	gauge(natsLeftOut, float64(n.Names.LeftOut))
	type owner struct{ instance, host string }
	foreign, rest := map[owner]int{}, n.Names.Foreign
	for _, o := range n.Names.Owners { // some of them, in a namespace each
		foreign[owner{o.Instance, o.HostName}] += o.Keys
		rest -= o.Keys
	}
	if rest > 0 {
		foreign[owner{"others", ""}] = rest
	}
	for b, keys := range foreign {
		gauge(natsForeign, float64(keys), b.instance, b.host)
	}
	counter(natsReconnects, n.Reconnects)
	counter(natsPublished, n.Published)
	counter(natsDropped, n.Dropped)
	for _, r := range n.Refused[:min(len(n.Refused), mostRights)] {
		gauge(natsRefused, 1, r.Right)
	}
}

// status sends what a broker that serves counts.
func status(s *broker.Status, gauge func(*prometheus.Desc, float64, ...string), counter func(*prometheus.Desc, uint64, ...string)) {
	gauge(segmentBytes, float64(s.Memory.Granted-min(s.Memory.Granted, s.Memory.Orphans)), "granted")
	gauge(segmentBytes, float64(s.Memory.Orphans), "orphan")
	gauge(laneBytes, float64(s.Memory.Lanes))
	gauge(memoryHeld, float64(s.Memory.Held))
	gauge(forChildrenBytes, float64(s.Memory.ForChildren))
	for _, d := range s.Devices {
		gauge(deviceBytes, float64(d.Granted-min(d.Granted, d.Orphans)), d.Device, "granted")
		gauge(deviceBytes, float64(d.Orphans), d.Device, "orphan")
		gauge(deviceBytes, float64(d.Held), d.Device, "held")
	}
	gauge(memoryLeft, float64(s.Memory.Left))
	gauge(sessions, float64(s.Counts.Sessions-s.Counts.Disconnected-s.Counts.Closed-s.Counts.Evicted), "live")
	gauge(sessions, float64(s.Counts.Closed), "closed")
	gauge(sessions, float64(s.Counts.Evicted), "evicted")
	gauge(sessions, float64(s.Counts.Disconnected-s.Counts.Unknown), "disconnected")
	gauge(sessions, float64(s.Counts.Unknown), "unknown")
	gauge(forChildren, float64(s.Counts.ForChildren))
	gauge(segments, float64(s.Counts.Segments))
	gauge(storages, float64(s.Counts.Storages))
	gauge(chunks, float64(s.Counts.Chunks))
	gauge(topics, float64(s.Counts.Topics), "topic")
	gauge(topics, float64(s.Counts.Queues), "queue")
	gauge(topics, float64(s.Counts.Functions), "function")
	gauge(namesSet, float64(s.Counts.Names))
	gauge(leases, float64(s.Counts.Leases))
	gauge(unread, float64(s.Unread.Waiting), "all")
	gauge(unread, float64(s.Unread.MayGo), "old")
	gauge(unreadOldest, s.Unread.Oldest)
	counter(givenUp, s.Unread.GivenUp)
	gauge(adopted, float64(s.Counts.AdoptedLanes))
	counter(deaths, s.Deaths)
	if t := s.Takeover; t != nil {
		gauge(takeoverTook, t.Seconds, t.From)
		gauge(takeoverLost, float64(t.Missing))
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
