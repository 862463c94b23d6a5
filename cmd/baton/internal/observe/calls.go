package observe

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/baton-ipc/baton/broker"
)

// callTimes are the buckets of how long functions run, in ns: powers of four of a microsecond.
var callTimes = func() (ns []uint64) {
	for t := uint64(1024); len(ns) < 12; t *= 4 {
		ns = append(ns, t)
	}
	return ns
}()

// functionCalls tells what the calls of all functions count, and of some functions what they count themselves.
func (c *collector) functionCalls(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	outcomes := func(d *prometheus.Desc, ok, failed uint64, labels ...string) {
		for outcome, n := range map[string]uint64{"ok": ok, "error": failed} {
			to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), append(labels, outcome)...)
		}
	}
	told := map[string]bool{}
	sum, ok := c.o.Calls(func(r *broker.FunctionRow) {
		key := r.Namespace + " " + r.Name
		if len(told) >= int(c.functions.Load()) || told[key] {
			return
		}
		told[key] = true
		outcomes(functionCalls, r.Calls-r.Errors, r.Errors, r.Namespace, r.Name)
		within := map[float64]uint64{}
		for i, n := range r.Counted.Within(callTimes) {
			within[float64(callTimes[i])/1e9] = n
		}
		to <- prometheus.MustNewConstHistogram(functionTook, r.Calls, r.Ran, within, r.Namespace, r.Name)
		gauge(functionWaiting, r.Waiting, r.Namespace, r.Name)
		gauge(functionRunning, r.Running, r.Namespace, r.Name)
		gauge(functionProviders, len(r.Providers), r.Namespace, r.Name)
	})
	if !ok {
		return // it is not whole
	}
	c.mu.Lock()
	all := &c.calls
	all.ok, all.failed, all.ran = max(all.ok, sum.Calls-min(sum.Errors, sum.Calls)), max(all.failed, sum.Errors), max(all.ran, sum.Ran)
	total := *all
	c.mu.Unlock()
	outcomes(calls, total.ok, total.failed)
	to <- prometheus.MustNewConstMetric(callSeconds, prometheus.CounterValue, total.ran)
	gauge(callsWaiting, int(sum.Waiting))
	gauge(callsRunning, int(sum.Running))
	gauge(providers, int(sum.Providers))
}
