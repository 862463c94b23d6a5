package demo

// What the roles meet at, in a namespace of the private broker.
const (
	namespace     = "demo"
	queueBatches  = "digits/batches"
	topicProgress = "digits/progress"
	nameWeights   = "weights/digits"
	nameSnapshot  = "weights/digits-eval"

	tensorImages = "images"
	tensorLabels = "labels"
	tensorLosses = "losses"
)
