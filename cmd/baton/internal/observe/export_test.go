package observe

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Described are the metrics that a broker may serve.
func Described() (all []string) {
	to := make(chan *prometheus.Desc)
	go func() {
		newRegistry(&Options{Requests: NewRequests()}, new(atomic.Int64), new(atomic.Int64)).Describe(to)
		close(to)
	}()
	for d := range to {
		all = append(all, d.String())
	}
	return all
}
