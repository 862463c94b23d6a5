// Package langs tests clients of different languages against each other. Each
// language has a driver: a program that does what lines of JSON ask for, one
// after the other, and answers each with a line. The tests run every pair of
// drivers through the same exchanges and look at every word of every tensor.
//
// The Go driver is a role of this package's test program; the Rust one is
// rust/examples/driver.rs. A new language adds a driver and a line to the
// table in drivers_test.go.
//
// Nothing of the product imports this package, and there is nothing in it but
// tests.
package langs
