package observe

import (
	_ "embed"
	"encoding/json"
	"net/http"

	"github.com/baton-ipc/baton/broker"
)

// pageHTML is the page: one file, without anything from elsewhere. It has no data of the broker,
// so it is given without a token; what it asks for requires one.
//
//go:embed page.html
var pageHTML []byte

// policy lets the page run its own script and style, and talk to where it came from alone.
const policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

func page(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	w.Write(pageHTML)
}

// looker answers with what the page shows.
func looker(look func() (broker.Look, bool)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		l, there := look()
		if !there {
			http.Error(w, "the broker is starting", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		json.NewEncoder(w).Encode(l)
	})
}
