// Package bench measures Baton.
package bench
