// Package integration tests processes against processes: hand-over in every
// shape, lifetimes, bad input, death of clients at random and at every crash
// point, death of the broker, and hostile clients. Its tests start real
// processes through internal/testkit; roles that children play stand beside the
// tests that use them.
//
// Nothing of the product imports this package, and there is nothing in it but
// tests.
package integration
