// Package testkit runs tests with real processes: a broker of their own in a
// runtime directory of their own, and children that play roles.
//
// A test package gives its roles to [Main] in TestMain. A test starts a broker
// with [StartBroker], children with [Broker.Start], talks with them in lines of
// JSON, kills, stops and continues them, and looks with [Audit] and
// [AuditEmpty] at what every session holds. A child is the test binary itself,
// or one that [CrashBinary] built with crash points.
//
// Ownership: what a test starts ends with it. Afterwards the test fails if a
// child still runs, if the broker did not end cleanly, if it left files in its
// directory, or if this process has kept descriptors, mappings or goroutines of
// closed clients.
//
// Concurrency: the leak checks look at the whole process, so tests that use the
// kit do not run in parallel. A [Process] and a [Broker] are for one goroutine.
//
// Waiting: nothing sleeps for something to have happened by then. [Until] asks
// again and again and gives up after [Patience], which is no measure of speed.
//
// Death: the kit exists to bring it about. A child ends by itself when its
// standard input ends, so none outlives the test process.
package testkit
