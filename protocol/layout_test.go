package protocol_test

import (
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFieldsLieAlignedAndApart(t *testing.T) {
	for _, s := range structs {
		end := 0
		for _, f := range s.Fields {
			assert.GreaterOrEqual(t, f.Offset, end, "%s.%s overlaps", s.Name, f.Name)
			end = f.Offset + f.Width
			if structNamed(f.Type) == nil {
				assert.Zero(t, f.Offset%widthOf(f.Type), "%s.%s is not aligned", s.Name, f.Name)
			}
		}
		assert.LessOrEqual(t, end, s.Size, s.Name)
		assert.Zero(t, s.Size%s.Align, s.Name)
	}
}

func TestPartsOfFilesLieApart(t *testing.T) {
	for _, f := range sharedFiles {
		end := 0
		for _, p := range f.Parts {
			assert.GreaterOrEqual(t, p.Offset, end, "%s.%s overlaps", f.Name, p.Name)
			end = p.Offset + p.Count*p.Stride
			if s := structNamed(p.Type); s != nil && !s.Varies {
				assert.Equal(t, s.Size, p.Stride, "%s.%s", f.Name, p.Name)
			}
		}
		if f.Bytes > 0 {
			assert.LessOrEqual(t, end, f.Bytes, f.Name)
			assert.Zero(t, f.Bytes%protocol.PageBytes, f.Name)
		}
	}
}

func TestWordsPartsLieApart(t *testing.T) {
	for _, w := range words {
		var used uint64
		for _, p := range w.Parts {
			mask := uint64(math.MaxUint64) >> (64 - p.Bits) << p.Shift
			assert.Zero(t, used&mask, "%s.%s overlaps", w.Name, p.Name)
			used |= mask
		}
	}
}

func TestMagicsAreTheirText(t *testing.T) {
	b := make([]byte, 8)
	putNumber(b, protocol.Magic)
	assert.Equal(t, "BATON\x00v1", string(b))
	putNumber(b, protocol.SpillMagic)
	assert.Equal(t, "BATSPILL", string(b))
}

func TestSlotsHoldDepthAndOneMore(t *testing.T) {
	for depth := uint32(0); depth <= protocol.MaxDepth; depth++ {
		n := protocol.Slots(depth)
		require.Zero(t, n&(n-1), "depth %d", depth)
		require.Greater(t, n, depth)
		require.GreaterOrEqual(t, n, uint32(2))
		if n > 2 {
			require.LessOrEqual(t, n/2, depth, "depth %d: half would do", depth)
		}
	}
	assert.Equal(t, protocol.Slots(protocol.MaxDepth), protocol.Slots(math.MaxUint32))
}

func TestStrideHoldsDescription(t *testing.T) {
	for _, d := range []uint32{0, 1, 63, 64, 65, 1024, protocol.MaxDescription} {
		n := protocol.Stride(d)
		assert.Zero(t, n%64)
		assert.GreaterOrEqual(t, n, protocol.SlotSize+d)
		assert.Less(t, n, protocol.SlotSize+d+64)
	}
	assert.Equal(t, protocol.Stride(protocol.MaxDescription), protocol.Stride(math.MaxUint32))
}

func TestLaneOfLargestTopicFitsInItsSessionFile(t *testing.T) {
	assert.Equal(t, uint64(4096), protocol.LaneBytes(2, 128))
	assert.Equal(t, uint64(8192), protocol.LaneBytes(2, 1984+64))
	assert.Equal(t, uint64(protocol.LaneSlotsAt+protocol.Slots(protocol.MaxDepth)*protocol.Stride(1024)+4095)&^4095,
		protocol.LaneBytes(protocol.Slots(protocol.MaxDepth), protocol.Stride(1024)))
	assert.Greater(t, protocol.LaneBytes(math.MaxUint32, math.MaxUint32), uint64(math.MaxUint32), "computed in 64 bits")
}

func TestGroupFileHoldsAnAreaForEachLane(t *testing.T) {
	assert.Equal(t, uint64(128), protocol.GroupAreaBytes(8))
	assert.Equal(t, uint64(128), protocol.GroupAreaBytes(2))
	n := protocol.GroupBytes(16)
	assert.Zero(t, n%protocol.PageBytes)
	assert.GreaterOrEqual(t, n, protocol.GroupAreas+protocol.MaxLanes*protocol.GroupAreaBytes(16))
}

func TestClaimAndHintSplitToWhatWasPacked(t *testing.T) {
	const most = 1<<50 - 1
	for _, number := range []uint64{0, 1, most} {
		n, member, state := protocol.SplitClaim(protocol.ClaimWord(number, protocol.MaxMembers, protocol.ClaimDone))
		assert.Equal(t, []any{number, uint16(protocol.MaxMembers), uint8(protocol.ClaimDone)}, []any{n, member, state})
		n, version := protocol.SplitHint(protocol.HintWord(number, 1<<14-1))
		assert.Equal(t, []any{number, uint16(1<<14 - 1)}, []any{n, version})
	}
	_, version := protocol.SplitHint(protocol.HintWord(7, 1<<14))
	assert.Zero(t, version, "the version wraps and leaves the number alone")
}

func TestTakeAndDropMoveSequenceAndCount(t *testing.T) {
	w := protocol.Take + protocol.Take + protocol.Drop
	assert.Equal(t, uint64(1), w&protocol.CountMask)
	assert.Equal(t, uint64(3), w>>protocol.CountBits)
}

// A row of a structure's table in docs/protocol.md: offset, type, field.
var (
	docStruct = regexp.MustCompile(`\*\*(\w+)\*\*`)
	docField  = regexp.MustCompile("^\\| (0x[0-9a-f]+|\\d+) \\| `(\\w+)(?:\\[(\\w+)\\])?` \\| `(\\w+)` \\|")
)

// The page is what people write clients from, so it must say what the code does: of each
// structure every field, its type and where it is, and no other.
func TestDocumentedFieldsAreThoseOfTheLayout(t *testing.T) {
	text, err := os.ReadFile("../docs/protocol.md")
	require.NoError(t, err)
	documented := map[string]bool{}
	name := ""
	for _, line := range strings.Split(string(text), "\n") {
		switch {
		case strings.HasPrefix(line, "#"):
			name = ""
		case !strings.HasPrefix(line, "|"):
			if marks := docStruct.FindAllStringSubmatch(line, -1); marks != nil {
				name = marks[len(marks)-1][1]
			}
		default:
			if m := docField.FindStringSubmatch(line); m != nil {
				checkDocumented(t, documented, name, m)
			}
		}
	}
	for _, s := range structs {
		if s.Name == "FrameHead" { // drawn, without offsets
			continue
		}
		for _, f := range s.Fields {
			if structNamed(f.Type) == nil {
				assert.True(t, documented[s.Name+"."+f.Name], "%s.%s is not in docs/protocol.md", s.Name, f.Name)
			}
		}
	}
}

// checkDocumented compares a row of a structure's table with the layout.
func checkDocumented(t *testing.T, documented map[string]bool, name string, row []string) {
	s := structNamed(name)
	if s == nil {
		return // of no structure, or of one that has no name of its own
	}
	at, err := strconv.ParseInt(row[1], 0, 64)
	require.NoError(t, err)
	count := 1
	if row[3] != "" {
		if count, err = strconv.Atoi(row[3]); err != nil { // as many as something else says: it begins what varies
			assert.EqualValues(t, s.Size, at, "%s.%s", name, row[4])
			return
		}
	}
	for _, f := range s.Fields {
		if f.Name == row[4] {
			assert.Equal(t, []any{row[2], int(at), count}, []any{f.Type, f.Offset, f.Count}, "%s.%s", name, row[4])
			documented[name+"."+row[4]] = true
			return
		}
	}
	assert.Fail(t, "docs/protocol.md has a field that is not in the layout", "%s.%s", name, row[4])
}
