package settings

// Group is what belongs together of the flags of a broker, as help shows it.
type Group struct {
	Title string
	Keys  []string
}

// Groups are those of all flags that [Define] adds.
var Groups = []Group{
	{"Place", []string{keyConfig, keyAddress, keyRuntimeDir, "memory-dir"}},
	{"Limits", []string{"memory", "session-memory", "device-memory", "session-device-memory", "unread-pickles"}},
	{"Life", []string{"idle-exit", "drain-timeout"}},
	{"Who may connect", []string{keyShared, "allow-uid", "allow-group", "observe-uid", "observe-group", keySocketMode}},
	{"NATS", []string{"nats", "nats-creds", "nats-nkey", "nats-user", keyNATSPassword, "nats-ca", "nats-cert", "nats-key", "nats-port", "nats-functions", "no-nats"}},
	{"Other hosts", []string{keySpan, "data", "data-listen", "data-tls", "remote-memory", keySpanTimeout}},
	{"HTTP", []string{"http", "http-token-file", "http-cert", "http-key", "metrics-topics", "metrics-functions", "pprof"}},
	{"Functions", []string{keyNoRemoteTraces}},
	{"Log", []string{"log-format", "log-level"}},
}

// living are the settings that a broker applies while it runs, by a reload.
var living = map[string]bool{
	"memory": true, "session-memory": true, "device-memory": true, "session-device-memory": true,
	"idle-exit": true, "drain-timeout": true, keySpanTimeout: true,
	"allow-uid": true, "allow-group": true, "observe-uid": true, "observe-group": true, keySocketMode: true,
	"http": true, "http-token-file": true, "http-cert": true, "http-key": true, "metrics-topics": true, "metrics-functions": true, "pprof": true,
	keyNoRemoteTraces: true,
	"log-level":       true,
}

// CanChange tells whether a broker that runs takes a new value of a setting over. All
// others wait for a restart.
func CanChange(key string) bool { return living[key] }
