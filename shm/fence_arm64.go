package shm

func fenceLoad()
func fenceStore()

// FenceAcquire orders earlier loads before later loads and stores.
func FenceAcquire() { fenceLoad() }

// FenceRelease orders earlier stores before later stores.
func FenceRelease() { fenceStore() }
