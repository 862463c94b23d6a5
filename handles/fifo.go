package handles

// fifo is a queue of storages that keeps its memory.
type fifo struct {
	ring []*Storage // as long as a power of two
	head int
	n    int
}

func (q *fifo) at(i int) int { return (q.head + i) & (len(q.ring) - 1) }

func (q *fifo) len() int { return q.n }

func (q *fifo) push(s *Storage) {
	if q.n == len(q.ring) {
		grown := make([]*Storage, max(64, 2*len(q.ring)))
		for i := 0; i < q.n; i++ {
			grown[i] = q.ring[q.at(i)]
		}
		q.ring, q.head = grown, 0
	}
	q.ring[q.at(q.n)] = s
	q.n++
}

func (q *fifo) pop() *Storage {
	s := q.ring[q.head]
	q.ring[q.head] = nil
	q.head = q.at(1)
	q.n--
	return s
}
