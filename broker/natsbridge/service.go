package natsbridge

import (
	"encoding/json"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/baton-ipc/baton/protocol"
)

const (
	// ServiceName is what brokers are listed as among the services of NATS.
	ServiceName = "baton"

	// pieceBytes is how much of a name's tuple one answer has at most.
	pieceBytes = 512 << 10
)

// service is the broker as a service of NATS: it says what it is (PING, INFO and STATS
// are the library's), and answers for the tuples of names, in each namespace that has
// or had any. It follows the connection, and is added anew when a namespace comes,
// because a service's metadata never change.
type service struct {
	self      identity
	namespace string // of the broker's surroundings
	link      *link
	names     *names
	stats     func() serviceStats
	log       *slog.Logger

	call func(Function, FunctionRequest)
	// counts are *functionStats by subject.
	counts sync.Map

	mu        sync.Mutex
	closed    bool
	nc        *nats.Conn
	running   micro.Service
	spaces    []string
	functions []Function // to be listed
	listed    []Function
	failed    string // why there is none
	stale     bool   // it is to be made anew, though nothing that it says has changed
}

// serviceStats is what STATS has of a broker beside its requests.
type serviceStats struct {
	Published uint64 `json:"published"`
	Dropped   uint64 `json:"dropped"`
	Names     int    `json:"names"`
	Mirrored  int    `json:"mirrored"`
}

func newService(self identity, l *link, n *names, stats func() serviceStats, cfg Config) *service {
	return &service{self: self, namespace: cfg.Namespace, link: l, names: n, stats: stats, log: cfg.Logger, call: cfg.Call}
}

// update makes the service what it should be: on the present connection, for all
// namespaces. It does not wait for the network.
func (s *service) update() {
	spaces := append(s.names.namespaces(), s.namespace)
	slices.Sort(spaces)
	spaces = slices.Compact(spaces)
	nc, _ := s.link.current()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || nc == nil || nc == s.nc && !s.stale && slices.Equal(spaces, s.spaces) && slices.Equal(s.functions, s.listed) {
		return
	}
	before := s.running
	s.nc, s.spaces, s.listed, s.failed, s.stale = nc, spaces, s.functions, "", false
	s.forgetLocked()
	var err error
	if s.running, err = s.add(nc, spaces, s.functions); err != nil {
		s.failed = err.Error()
		s.log.Warn("the broker is not listed among the services of NATS", "error", err)
	}
	if before != nil {
		stopService(before)
	}
}

func (s *service) add(nc *nats.Conn, spaces []string, functions []Function) (micro.Service, error) {
	added, err := micro.AddService(nc, micro.Config{
		Name: ServiceName, Version: semantic(s.self.version),
		Description: "Baton's broker: hands tensors between processes of a machine",
		Metadata: map[string]string{"host": s.self.hostName, "machine": s.self.machine, "pid": strconv.Itoa(s.self.pid),
			"instance": s.self.owner, "namespace": strings.Join(spaces, ","), "protocol": strconv.Itoa(protocol.Version)},
		QueueGroupDisabled: true,
		StatsHandler:       s.statsOfEndpoint,
	})
	if err != nil {
		return nil, err
	}
	for _, ns := range spaces {
		prefix := protocol.NamesSubject(ns, s.self.owner) + "."
		err := added.AddEndpoint("names-"+ns, micro.HandlerFunc(func(r micro.Request) {
			s.names.answer(r, ns, keyName(strings.TrimPrefix(r.Subject(), prefix)), int(s.link.maxPayload.Load()))
		}), micro.WithEndpointSubject(prefix+">"), micro.WithEndpointMetadata(map[string]string{"namespace": ns}))
		if err != nil {
			stopService(added)
			return nil, err
		}
	}
	for _, f := range functions {
		if err := s.addFunction(added, f); err != nil {
			stopService(added)
			return nil, err
		}
	}
	return added, nil
}

// addFunction lists a function. Brokers that have one of the same name share its requests.
func (s *service) addFunction(to micro.Service, f Function) error {
	subject := protocol.FunctionSubject(f.Namespace, f.Name)
	name := strings.NewReplacer(".", "-", "@", "-").Replace(strings.TrimPrefix(subject, "baton."))
	counts := s.statsOf(subject)
	return to.AddEndpoint(name,
		micro.HandlerFunc(func(r micro.Request) { s.call(f, functionRequest{r, time.Now(), counts, s.link}) }),
		micro.WithEndpointSubject(subject), micro.WithEndpointQueueGroup(ServiceName),
		micro.WithEndpointMetadata(map[string]string{"namespace": f.Namespace, "function": f.Name, "description": f.Description}))
}

// list says which functions are to be listed.
func (s *service) list(functions []Function) {
	s.mu.Lock()
	s.functions = functions
	s.mu.Unlock()
	s.update()
}

// count is how many functions are to be listed.
func (s *service) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.functions)
}

// stopService takes a service away. With its connection it has gone already.
func stopService(s micro.Service) { _ = s.Stop() }

// close ends the service for good, while its connection is there.
func (s *service) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.running != nil {
		stopService(s.running)
	}
}

// refused notes where the server does not let the broker answer.
func (s *service) refused(l *lackingRight) {
	if l.publish {
		return
	}
	if ns := s.namespaceOf(l.subject); ns != "" {
		s.names.mute(ns, true)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked() // the server may speak of a function that is listed no more
}

// granted subscribes anew to what a right permits, if it is one of the service's.
func (s *service) granted(l *lackingRight, subjects []string) bool {
	if l.right != rightToList && l.right != rightToCalls && l.right != rightToHost(s.self.owner) {
		return false
	}
	s.mu.Lock()
	s.stale = true
	s.mu.Unlock()
	for _, subject := range subjects {
		if ns := s.namespaceOf(subject); ns != "" {
			s.names.mute(ns, false)
		}
	}
	s.update()
	return true
}

// namespaceOf is the namespace of a subject on which the broker answers for names; "": it is none of these.
func (s *service) namespaceOf(subject string) string {
	for _, ns := range append(s.names.namespaces(), s.namespace) {
		if strings.HasPrefix(subject, protocol.NamesSubject(ns, s.self.owner)+".") {
			return ns
		}
	}
	return ""
}

// forgetLocked drops refusals of functions that are listed no more.
func (s *service) forgetLocked() {
	listed := map[string]bool{}
	for _, f := range s.listed {
		listed[protocol.FunctionSubject(f.Namespace, f.Name)] = true
	}
	s.link.refusals.forget(func(l *lackingRight, subject string) bool { return l.right == rightToCalls && !listed[subject] })
}

// why is the reason why the broker is not, or not wholly, a service of NATS.
func (s *service) why() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

var semVer = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+)?$`)

// semantic is the version in the form that services need.
func semantic(version string) string {
	if semVer.MatchString(version) {
		return version
	}
	return "0.0.0"
}

// Codes of refusals, in the header Nats-Service-Error-Code.
const (
	codeBadRequest = "400"
	codeNoName     = "404"
	codeOver       = "410" // the revision that was asked for
)

// answer gives a piece of a name's tuple, or its size.
func (n *names) answer(r micro.Request, ns, name string, room int) {
	var ask protocol.TupleRequest
	if len(r.Data()) > 0 {
		if err := json.Unmarshal(r.Data(), &ask); err != nil {
			n.refuse(r, codeBadRequest, `ask with {"revision":N,"offset":N}`)
			return
		}
	}
	n.mu.Lock()
	var value []byte
	var revision uint64
	if s := n.spaces[ns]; s != nil {
		if k := s.keys[name]; k != nil {
			value, revision = k.value, k.revision // never written to again
		}
	}
	n.mu.Unlock()
	switch {
	case value == nil:
		n.refuse(r, codeNoName, "this broker has no tuple of such a name: read its key again")
	case ask.Revision != 0 && ask.Revision != revision:
		n.refuse(r, codeOver, "the name has revision "+strconv.FormatUint(revision, 10)+" now: read its key again")
	case ask.Offset == nil:
		n.sent(r, r.RespondJSON(protocol.TupleSize{Revision: revision, Bytes: uint64(len(value))}))
	case *ask.Offset >= uint64(len(value)):
		n.refuse(r, codeBadRequest, "the tuple has "+strconv.Itoa(len(value))+" bytes")
	default:
		piece := value[*ask.Offset:]
		piece = piece[:min(len(piece), pieceBytes, max(room-headerRoom, 1))]
		n.sent(r, r.Respond(piece, micro.WithHeaders(micro.Headers{headerRevision: []string{strconv.FormatUint(revision, 10)}})))
	}
}

func (n *names) refuse(r micro.Request, code, why string) { n.sent(r, r.Error(code, why, nil)) }

// sent notes an answer that could not be given: the client will ask again.
func (n *names) sent(r micro.Request, err error) {
	n.link.refusals.sent(r.Reply())
	if err != nil {
		n.log.Debug("a question on NATS was not answered", "subject", r.Subject(), "error", err)
	}
}
