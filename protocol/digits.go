package protocol

import (
	"math/bits"
	"slices"
)

// appendUint appends n in decimal. It is strconv's, without what that does for other
// bases: most of a tuple's text that changes is numbers.
func appendUint(dst []byte, n uint64) []byte {
	if n < 10 {
		return append(dst, '0'+byte(n))
	}
	k := digitsOf(n)
	at := len(dst)
	dst = slices.Grow(dst, k)[:at+k]
	out := dst[at:]
	for k--; n >= 100; k -= 2 {
		q := n / 100
		pair := (n - q*100) * 2
		out[k], out[k-1] = pairs[pair+1], pairs[pair]
		n = q
	}
	if n >= 10 {
		out[1], out[0] = pairs[2*n+1], pairs[2*n]
	} else {
		out[0] = '0' + byte(n)
	}
	return dst
}

const pairs = "00010203040506070809" +
	"10111213141516171819" +
	"20212223242526272829" +
	"30313233343536373839" +
	"40414243444546474849" +
	"50515253545556575859" +
	"60616263646566676869" +
	"70717273747576777879" +
	"80818283848586878889" +
	"90919293949596979899"

// digitsOf returns how many digits n has in decimal.
func digitsOf(n uint64) int {
	d := bits.Len64(n|1) * 1233 >> 12
	if n >= powers[d] {
		d++
	}
	return d
}

var powers = func() (p [20]uint64) {
	p[0] = 1
	for i := 1; i < len(p); i++ {
		p[i] = p[i-1] * 10
	}
	return p
}()
