package main_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/testkit"
)

const monitoring = "../../packaging/monitoring/"

func TestAlertsSayWhenAndAreInTheRunbook(t *testing.T) {
	rules, err := os.ReadFile(monitoring + "alerts.yml")
	require.NoError(t, err)
	book, err := os.ReadFile("../../docs/runbook.md")
	require.NoError(t, err)
	var alerts []string
	for _, m := range regexp.MustCompile(`- alert: (\w+)\n(?s:.*?)runbook: docs/runbook\.md#(\w+)\n`).FindAllStringSubmatch(string(rules), -1) {
		alerts = append(alerts, m[1])
		assert.Equal(t, strings.ToLower(m[1]), m[2])
	}
	assert.Equal(t, strings.Count(string(rules), "- alert:"), len(alerts))
	var entries []string
	for _, m := range regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(string(book), -1) {
		entries = append(entries, m[1])
	}
	assert.Equal(t, alerts, entries)

	testkit.Need(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		cmd := exec.Command("promtool", args...)
		cmd.Dir = monitoring
		out, err := cmd.CombinedOutput()
		assert.NoError(t, err, "%s", out)
	}
}

// Every metric that an alert or the dashboard asks for is one that a broker has.
func TestAlertsAndDashboardAskForMetricsThatThereAre(t *testing.T) {
	p := newPlace(t)
	first := p.serveNATS("--http", "127.0.0.1:0")
	s := p.serveNATS("--http", "127.0.0.1:0", "--metrics-topics", "9", "--metrics-functions", "9", "--replace")
	first.wait()
	traffic(p)
	provides(p, p.client(), "vision/scale", scales)
	p.baton("delete", "--kind", "name", "nothing") // a refusal
	_, body := fetch(t, s.endpoint()+"/metrics", "")
	there := regexp.MustCompile(`(?m)^(\w+?)(_bucket|_sum|_count)?[{ ]`)
	var have []string
	for _, m := range there.FindAllStringSubmatch(body, -1) {
		have = append(have, m[1], m[1]+m[2])
	}
	have = append(have, "baton_nats_names_foreign", "baton_nats_right_refused", "baton_device_memory_bytes")                                                          // of a key that is another broker's; of an operator's server; with a GPU
	have = append(have, "baton_hosts_spanning", "baton_hosts_kept_bytes", "baton_hosts_bytes_total", "baton_hosts_fetches_failed_total", "baton_hosts_refused_total", // with --span
		"baton_span_names", "baton_span_namespaces", "baton_span_names_failing", "baton_span_stale_seconds", "baton_span_sets_total", "baton_span_set_duration_seconds_bucket",
		"baton_span_revisions_total", "baton_span_revisions_evicted_total")
	for _, file := range []string{"alerts.yml", "grafana.json"} {
		text, err := os.ReadFile(monitoring + file)
		require.NoError(t, err)
		for _, name := range regexp.MustCompile(`\b(baton|process)_\w+`).FindAllString(string(text), -1) {
			assert.True(t, slices.Contains(have, name), "%s asks for %s", file, name)
		}
	}
	dashboard, err := os.ReadFile(monitoring + "grafana.json")
	require.NoError(t, err)
	assert.True(t, json.Valid(dashboard))
	if _, err := exec.LookPath("promtool"); err == nil {
		cmd := exec.Command("promtool", "check", "metrics")
		cmd.Stdin = strings.NewReader(body)
		out, err := cmd.CombinedOutput()
		assert.NoError(t, err, "%s", out)
	}
}
