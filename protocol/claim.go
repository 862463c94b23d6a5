package protocol

// ClaimWord packs a claim: number 50 bits, member 12, state 2.
func ClaimWord(number uint64, member uint16, state uint8) uint64 {
	return number<<14 | uint64(member&0xfff)<<2 | uint64(state&3)
}

// SplitClaim unpacks a claim word.
func SplitClaim(w uint64) (number uint64, member uint16, state uint8) {
	return w >> 14, uint16(w >> 2 & 0xfff), uint8(w & 3)
}

// HintWord packs a group's hint: number 50 bits, version 14.
func HintWord(number uint64, version uint16) uint64 {
	return number<<14 | uint64(version&0x3fff)
}

// SplitHint unpacks a hint.
func SplitHint(w uint64) (number uint64, version uint16) { return w >> 14, uint16(w & 0x3fff) }
