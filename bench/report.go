package bench

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Units of figures.
const (
	UnitTime  = "ns"
	UnitRate  = "per second"
	UnitBytes = "bytes"
	UnitShare = "share" // of one CPU, or of what is counted
	UnitRatio = "ratio"
	UnitCount = "count"
)

// Report is what was measured, where and when.
type Report struct {
	Date    time.Time `json:"date"`
	Seconds float64   `json:"seconds"` // that it took
	Version string    `json:"version,omitempty"`
	Quick   bool      `json:"quick,omitempty"`
	Passes  int       `json:"passes"` // of an interrupted run, those that were made of some figure
	// Interrupted: what had no pass is left out.
	Interrupted bool      `json:"interrupted,omitempty"`
	Machine     Machine   `json:"machine"`
	Figures     []*Figure `json:"figures"`
}

// Machine is where the figures are from.
type Machine struct {
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"` // that we may use
	Pinned [2]int `json:"pinned"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	Python string `json:"python,omitempty"` // and what is measured beside it
	// Load is the average number of processes that wanted a CPU in the minute
	// before the measurements, and in the one before their end.
	LoadBefore float64 `json:"load_before"`
	LoadAfter  float64 `json:"load_after"`
}

// Figure is one thing measured.
type Figure struct {
	Group string `json:"group"`
	Name  string `json:"name"`
	Unit  string `json:"unit"`
	// Quantiles are the medians over the passes of each quantile.
	Quantiles
	Passes []Quantiles `json:"passes"`
	// Floor is the figure of the same group that this one is compared with: Ratio
	// is the median of Ratios, which are quotients of the p50 of neighbouring slices,
	// or of passes where nothing shorter was measured.
	Floor  string    `json:"floor,omitempty"`
	Ratio  float64   `json:"ratio,omitempty"`
	Ratios []float64 `json:"ratios,omitempty"`
	// Bar is what the project has set itself, if anything, and Met whether the
	// medians keep to it.
	Bar *Bar  `json:"bar,omitempty"`
	Met *bool `json:"met,omitempty"`
}

// Bar is a limit on one of a figure's values.
type Bar struct {
	Of  string  `json:"of"` // "ratio", "p50" or "p99"
	Max float64 `json:"max,omitempty"`
	Min float64 `json:"min,omitempty"`
}

func atMost(of string, v float64) *Bar  { return &Bar{Of: of, Max: v} }
func atLeast(of string, v float64) *Bar { return &Bar{Of: of, Min: v} }

// figure returns a figure of a group, making it at the first call.
func (r *Report) figure(group, name, unit string) *Figure {
	if f := r.Find(group, name); f != nil {
		return f
	}
	f := &Figure{Group: group, Name: name, Unit: unit}
	r.Figures = append(r.Figures, f)
	return f
}

// Find returns a figure by name, nil if there is none.
func (r *Report) Find(group, name string) *Figure {
	for _, f := range r.Figures {
		if f.Group == group && f.Name == name {
			return f
		}
	}
	return nil
}

// add notes a pass.
func (f *Figure) add(q Quantiles) {
	if math.IsNaN(q.P50) {
		return // of nothing: it was interrupted
	}
	f.Passes = append(f.Passes, q)
}

// one notes a pass that gave a single value.
func (f *Figure) one(v float64) { f.add(Quantiles{N: 1, P50: v}) }

// against compares with another figure of the group, and may set a bar on that.
func (f *Figure) against(floor string, bar *Bar) *Figure {
	f.Floor = floor
	if bar != nil {
		f.Bar = bar
	}
	return f
}

// dropUnmeasured leaves out figures without a pass, and says how many passes there are at most, of a run that was
// interrupted or failed.
func (r *Report) dropUnmeasured() {
	r.Figures = slices.DeleteFunc(r.Figures, func(f *Figure) bool { return len(f.Passes) == 0 })
	if r.Interrupted {
		most := 0
		for _, f := range r.Figures {
			most = max(most, len(f.Passes))
		}
		r.Passes = min(r.Passes, most)
	}
}

// derive computes what follows from the passes.
func (r *Report) derive() {
	for _, f := range r.Figures {
		f.Quantiles = medianQuantiles(f.Passes)
		if floor := r.Find(f.Group, f.Floor); floor != nil && f.Ratios == nil {
			for i := range min(len(f.Passes), len(floor.Passes)) {
				if d := floor.Passes[i].P50; d > 0 {
					f.Ratios = append(f.Ratios, f.Passes[i].P50/d)
				}
			}
		}
		if len(f.Ratios) > 0 {
			f.Ratio = medianOf(f.Ratios)
		}
		if f.Bar != nil && (f.Bar.Of != "ratio" || len(f.Ratios) > 0) {
			met := f.Bar.holds(f.value(f.Bar.Of))
			f.Met = &met
		}
	}
}

func (f *Figure) value(of string) float64 {
	switch of {
	case "ratio":
		return f.Ratio
	case "p99":
		return f.P99
	default:
		return f.P50
	}
}

func (b *Bar) holds(v float64) bool {
	return (b.Max == 0 || v <= b.Max) && v >= b.Min
}

// spread returns the least and the greatest p50 of the passes.
func (f *Figure) spread() (least, most float64) {
	for i, p := range f.Passes {
		if i == 0 || p.P50 < least {
			least = p.P50
		}
		if i == 0 || p.P50 > most {
			most = p.P50
		}
	}
	return least, most
}

// WriteFile writes the report as JSON, making the folder if there is none.
func (r *Report) WriteFile(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the figures: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write the figures: %w", err)
	}
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the figures: %w", err)
	}
	return nil
}

// ReadFile returns the report that WriteFile wrote.
func ReadFile(path string) (*Report, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the figures: %w", err)
	}
	r := new(Report)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("read the figures in %s: %w (`baton-bench -o` writes such files)", path, err)
	}
	return r, nil
}

func thisMachine(pinned [2]int) Machine {
	m := Machine{CPU: "unknown", CPUs: runtime.NumCPU(), Pinned: pinned, Go: runtime.Version(), LoadBefore: loadAverage()}
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for _, line := range strings.Split(string(data), "\n") {
			key, value, ok := strings.Cut(line, ":")
			if ok && slices.Contains([]string{"model name", "CPU part", "cpu model"}, strings.TrimSpace(key)) {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	if data, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(data))
	}
	return m
}

func loadAverage() float64 {
	var load float64
	if data, err := os.ReadFile("/proc/loadavg"); err == nil {
		fmt.Sscan(string(data), &load)
	}
	return load
}
