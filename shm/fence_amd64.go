package shm

// On amd64 loads stay in order among themselves, and stores do.

// FenceAcquire orders earlier loads before later loads and stores.
func FenceAcquire() {}

// FenceRelease orders earlier loads and stores before later stores.
func FenceRelease() {}
