package signature

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

func TestDescriptionReadsAsItWasWritten(t *testing.T) {
	const text = `{"doc":"Scales.","parameters":[{"name":"image","type":"tensor"},` +
		`{"by":"name","default":0.5,"name":"mean","type":"float|none"},` +
		`{"many":true,"name":"more","type":"any"},{"name":"odd","optional":true,"type":"m:C"}],"result":"tensor"}`
	s, err := Parse(text)
	require.NoError(t, err)
	written, err := s.JSON()
	require.NoError(t, err)
	require.JSONEq(t, text, written)
	require.Equal(t, "(image: tensor, *, mean: float|none = 0.5, *more: any, odd: m:C = …) -> tensor", s.String())
	p := *s.Parameters
	require.Equal(t, []Types{Tensor, Float | None, Any, Any}, []Types{p[0].Types, p[1].Types, p[2].Types, p[3].Types})
	require.Equal(t, []int{0, 2, 2}, []int{s.Positional(0), s.Positional(1), s.Positional(5)})
	require.Equal(t, []int{1, 3, -1}, []int{s.Named("mean"), s.Named("odd"), s.Named("other")})
}

func TestParametersByPositionAloneStandBeforeASlash(t *testing.T) {
	for text, want := range map[string]string{
		`[{"name":"a","type":"int","by":"position"},{"name":"b","type":"int"}]`:                             "(a: int, /, b: int)",
		`[{"name":"a","type":"int","by":"position"},{"name":"b","type":"int","by":"position","many":true}]`: "(a: int, /, *b: int)",
		`[{"name":"a","type":"int","by":"position"},{"name":"b","type":"int","by":"name"}]`:                 "(a: int, /, *, b: int)",
		`[{"name":"a","type":"int","by":"position"}]`:                                                       "(a: int, /)",
		`[{"name":"a","type":"int","by":"position","many":true}]`:                                           "(*a: int)",
	} {
		s, err := Parse(`{"parameters":` + text + `}`)
		require.NoError(t, err)
		require.Equal(t, want, s.String())
	}
}

func TestWhatIsNoDescriptionIsRefused(t *testing.T) {
	for _, text := range []string{"", "[]", "1", "null", `{"parameters":1}`, `{"parameters":[{}]}`, `{"parameters":[{"name":1}]}`} {
		_, err := Parse(text)
		require.Error(t, err, text)
	}
	s, err := Parse("{}")
	require.NoError(t, err)
	require.Equal(t, "(…)", s.String())
	require.Nil(t, s.Parameters, "nothing is known of them")
}

func TestSignaturesThatMayBeProvidedAreThoseOfEveryLanguage(t *testing.T) {
	var table struct {
		Signatures []struct {
			Parameters    [][2]string
			Result, Error string
		}
	}
	text, err := os.ReadFile("../../../protocol/testdata/functions.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &table))
	require.Greater(t, len(table.Signatures), 40)
	for _, given := range table.Signatures {
		s := &Signature{Parameters: &[]Parameter{}, Result: given.Result}
		for _, p := range given.Parameters {
			*s.Parameters = append(*s.Parameters, Parameter{Name: p[0], Type: p[1]})
		}
		err := s.Check()
		if given.Error == "" {
			require.NoError(t, err, "%q", given)
			continue
		}
		require.Equal(t, protocol.CodeInvalid, protocol.CodeOf(err), "%q", given)
		require.Equal(t, "baton: "+given.Error, err.Error())
	}
	require.NoError(t, (&Signature{}).Check(), "nothing is said of the parameters")
	require.Error(t, (&Signature{Parameters: &[]Parameter{{Name: "\xff", Type: "int"}}}).Check(), "no UTF-8")
}
