package record

// Claims, only for brokers: numbers of leases that were claimed and are not there. A new claim
// takes the place of the oldest.
const claimSize = 8 // u64 number of the lease

// ClaimPlace is the place of the claim that is added next.
func (f File) ClaimPlace() Place {
	return place(claimsAt, f.r.Load64(headClaims)%MaxClaims, claimSize)
}

// AddClaim notes that a lease was claimed. The caller has reserved ClaimPlace.
func (f File) AddClaim(lease uint64) {
	f.r.Store64(f.ClaimPlace().At, lease)
	f.r.Store64(headClaims, f.r.Load64(headClaims)+1) // after it: a claim that is not counted was not answered
}

// Claims are the last claims, oldest first.
func (f File) Claims() []uint64 {
	n := f.r.Load64(headClaims)
	all := make([]uint64, 0, min(n, MaxClaims))
	for i := n - min(n, MaxClaims); i < n; i++ {
		all = append(all, f.r.Load64(claimsAt+i%MaxClaims*claimSize))
	}
	return all
}

// ForgetClaims notes that no lease was claimed.
func (f File) ForgetClaims() { f.r.Store64(headClaims, 0) }
