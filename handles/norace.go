//go:build !race

package handles

func raceRelease(uint32) {}

func raceAcquire(uint32) {}
