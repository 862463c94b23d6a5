// Package devices is what a session has on GPUs: pools of their memory, what it lends of memory
// that frameworks have allocated there, and what was released while streams still use it. A
// session without GPUs has none of it.
package devices
