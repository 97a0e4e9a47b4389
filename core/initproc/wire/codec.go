//go:build linux

package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A message is a sequence of numbered fields: a key, whose last bit tells a text
// from a number, and a value; of a text the length comes first. All numbers are
// varints. Not JSON, which turns the bytes of a name that is not UTF-8 into
// others. No library of protocol buffers either: one opens its own program when
// it is loaded, which process 1 must not.

// field is one member of a message: its number, and where it is.
type field struct {
	number uint64
	value  any // *string, *[]string, *uint64, *uint32, *int, *bool, **Spawn
}

func (m *Message) fields() []field {
	return []field{
		{1, (*string)(&m.Kind)},
		{2, &m.ID},
		{3, &m.Version},
		{4, &m.Spawn},
		{5, &m.Pid},
		{6, &m.Status},
		{7, &m.Left},
		{8, &m.Stream},
		{9, &m.Path},
		{10, &m.Follow},
		{11, &m.MakeParents},
		{12, &m.Name},
		{13, &m.Errno},
		{14, (*string)(&m.Stage)},
		{15, &m.CPUMicros},
		{16, &m.MaxRSS},
		{17, &m.QuietMs},
	}
}

func (s *Spawn) fields() []field {
	return []field{
		{1, &s.Argv},
		{2, &s.Env},
		{3, &s.Dir},
		{4, (*string)(&s.Network)},
		{5, &s.Stdin},
		{6, &s.Columns},
		{7, &s.Rows},
	}
}

// encode appends the fields that are not zero.
func encode(to []byte, fields []field) []byte {
	number := func(n, v uint64) {
		if v != 0 {
			to = binary.AppendUvarint(to, n<<1)
			to = binary.AppendUvarint(to, v)
		}
	}
	text := func(n uint64, v string) {
		to = binary.AppendUvarint(to, n<<1|1)
		to = binary.AppendUvarint(to, uint64(len(v)))
		to = append(to, v...)
	}
	for _, f := range fields {
		switch v := f.value.(type) {
		case *string:
			if *v != "" {
				text(f.number, *v)
			}
		case *[]string:
			for _, element := range *v {
				text(f.number, element)
			}
		case *uint64:
			number(f.number, *v)
		case *uint32:
			number(f.number, uint64(*v))
		case *int:
			number(f.number, uint64(*v))
		case *bool:
			if *v {
				number(f.number, 1)
			}
		case **Spawn:
			if *v != nil {
				text(f.number, string(encode(nil, (*v).fields())))
			}
		}
	}
	return to
}

var errCutShort = errors.New("cut short")

// decode fills fields from data. What it does not know is an error: both sides
// come from one build.
func decode(data []byte, fields []field) error {
	next := func() (uint64, error) {
		v, n := binary.Uvarint(data)
		if n <= 0 {
			return 0, errCutShort
		}
		data = data[n:]
		return v, nil
	}
	for len(data) > 0 {
		key, err := next()
		if err != nil {
			return err
		}
		value, err := next()
		if err != nil {
			return err
		}
		number, isText := key>>1, key&1 == 1
		if number < 1 || number > uint64(len(fields)) {
			return fmt.Errorf("no field has number %d", number)
		}
		f := fields[number-1]
		if !isText {
			err = f.setNumber(value)
		} else if value > uint64(len(data)) {
			err = errCutShort
		} else {
			err = f.setText(data[:value])
			data = data[value:]
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f field) setNumber(value uint64) error {
	switch v := f.value.(type) {
	case *uint64:
		*v = value
	case *uint32:
		*v = uint32(value)
	case *int:
		*v = int(value)
	case *bool:
		*v = value != 0
	default:
		return fmt.Errorf("field %d is not a number", f.number)
	}
	return nil
}

func (f field) setText(value []byte) error {
	switch v := f.value.(type) {
	case *string:
		*v = string(value)
	case *[]string:
		*v = append(*v, string(value))
	case **Spawn:
		if *v != nil {
			return fmt.Errorf("field %d comes twice", f.number)
		}
		*v = &Spawn{}
		return decode(value, (*v).fields())
	default:
		return fmt.Errorf("field %d is not a text", f.number)
	}
	return nil
}
