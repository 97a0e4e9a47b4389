//go:build linux

package wire

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// full returns a value with no field left at zero.
func full(t *testing.T, kind reflect.Type) reflect.Value {
	v := reflect.New(kind).Elem()
	switch kind.Kind() {
	case reflect.String:
		v.SetString("\xff\x00é")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int:
		v.SetInt(-1 << 63)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(1<<kind.Bits() - 1)
	case reflect.Slice:
		v = reflect.ValueOf([]string{"", "a", ""})
	case reflect.Pointer:
		v.Set(full(t, kind.Elem()).Addr())
	case reflect.Struct:
		for i := range kind.NumField() {
			v.Field(i).Set(full(t, kind.Field(i).Type))
		}
	default:
		t.Fatalf("no value for a %v", kind)
	}
	return v
}

// A field that was forgotten in fields would be lost on the way.
func TestCodec_LosesNoField(t *testing.T) {
	sent := full(t, reflect.TypeFor[Message]()).Interface().(Message)
	var got Message
	require.NoError(t, decode(encode(nil, sent.fields()), got.fields()))
	require.Equal(t, sent, got)
	require.Empty(t, encode(nil, new(Message).fields()))
}

func TestCodec_NumbersAreInOrder(t *testing.T) {
	for _, fields := range [][]field{new(Message).fields(), new(Spawn).fields()} {
		for i, f := range fields {
			require.EqualValues(t, i+1, f.number)
		}
	}
}

func TestDecode_Refuses(t *testing.T) {
	const kind, id, spawn = 1 << 1, 2 << 1, 4 << 1
	for name, packet := range map[string]string{
		"a field nobody has":       "\x7e\x01",
		"field zero":               "\x00\x01",
		"a key without a value":    string(rune(kind | 1)),
		"a number where a text is": string(rune(kind)) + "\x01",
		"a text where a number is": string(rune(id|1)) + "\x01x",
		"half a text":              string(rune(kind|1)) + "\x04kin",
		"half a number":            string(rune(id)) + "\x80",
		"a number without end":     string(rune(id)) + "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
		"a text of all there is":   string(rune(kind|1)) + "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
		"two spawns":               string(rune(spawn|1)) + "\x00" + string(rune(spawn|1)) + "\x00",
		"a spawn of nonsense":      string(rune(spawn|1)) + "\x01\xff",
	} {
		t.Run(name, func(t *testing.T) {
			require.Error(t, decode([]byte(packet), new(Message).fields()))
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(encode(nil, (&Message{Kind: KindSpawn, ID: 7, Spawn: &Spawn{Argv: []string{"a", ""}, Dir: "/"}}).fields()))
	f.Add([]byte{0xff})
	f.Fuzz(func(t *testing.T, packet []byte) {
		var once, again Message
		if decode(packet, once.fields()) != nil {
			return
		}
		require.NoError(t, decode(encode(nil, once.fields()), again.fields()))
		require.Equal(t, once, again)
	})
}
