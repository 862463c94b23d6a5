package natsbridge

import (
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/micro"
)

// The library counts an error, and how long a request took, within the handler alone. Functions are answered
// later, from where their replies come, so the service counts for itself.

// functionStats is what STATS has of a function, in the member data of its endpoint. Times are in nanoseconds, as
// the library's are.
type functionStats struct {
	mu sync.Mutex
	// Answered requests had a result, Failed ones an error. Those that are in neither run or wait.
	Answered uint64        `json:"answered"`
	Failed   uint64        `json:"failed"`
	Last     string        `json:"last_error,omitempty"`
	Took     time.Duration `json:"processing_time"`
	Average  time.Duration `json:"average_processing_time"`
}

// statsOf finds or makes the counts of the function with a subject. They outlive the service's being made anew.
func (s *service) statsOf(subject string) *functionStats {
	f, _ := s.counts.LoadOrStore(subject, &functionStats{})
	return f.(*functionStats)
}

// statsOfEndpoint is what STATS has beside the library's own: for a function its counts, else the broker's.
func (s *service) statsOfEndpoint(e *micro.Endpoint) any {
	if e.Metadata["function"] == "" {
		return s.stats()
	}
	f := s.statsOf(e.Subject)
	f.mu.Lock()
	defer f.mu.Unlock()
	return &functionStats{Answered: f.Answered, Failed: f.Failed, Last: f.Last, Took: f.Took, Average: f.Average}
}

// note counts an answer before it is sent, so that the requester finds it counted; failure is "" for a result.
func (f *functionStats) note(began time.Time, failure string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if failure == "" {
		f.Answered++
	} else {
		f.Failed++
		f.Last = failure
	}
	f.Took += time.Since(began)
	f.Average = f.Took / time.Duration(f.Answered+f.Failed)
}

// unsent corrects a result that could not be sent.
func (f *functionStats) unsent(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Answered--
	f.Failed++
	f.Last = err.Error()
}

// functionRequest is a request of the library's.
type functionRequest struct {
	micro.Request
	began time.Time
	stats *functionStats
	link  *link
}

func (r functionRequest) Room() int { return int(r.link.maxPayload.Load()) }

func (r functionRequest) Header(name string) string { return r.Headers().Get(name) }

func (r functionRequest) Respond(data []byte) error {
	r.stats.note(r.began, "")
	err := r.Request.Respond(data)
	if err != nil {
		r.stats.unsent(err)
	}
	r.link.refusals.sent(r.Reply())
	return err
}

func (r functionRequest) Fail(code, text string, data []byte) error {
	r.stats.note(r.began, fmt.Sprintf("%s:%s", code, text))
	err := r.Error(code, text, data)
	r.link.refusals.sent(r.Reply())
	return err
}
