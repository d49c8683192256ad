//go:build linux

package guest

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Opcodes of encoded terminal modes (RFC 4254, section 8; IUTF8 is RFC 8160).
const (
	opEnd      = 0
	opIspeed   = 128
	opOspeed   = 129
	opUnparsed = 160 // from here on the argument's length is unknown, so parsing stops
)

// controlChars are the opcodes whose argument is a character.
var controlChars = map[byte]int{1: unix.VINTR, 2: unix.VQUIT, 3: unix.VERASE, 4: unix.VKILL,
	5: unix.VEOF, 6: unix.VEOL,
	7: unix.VEOL2, 8: unix.VSTART, 9: unix.VSTOP, 10: unix.VSUSP, 12: unix.VREPRINT,
	13: unix.VWERASE, 14: unix.VLNEXT,
	16: unix.VSWTC, 18: unix.VDISCARD}

var inputFlags = map[byte]uint32{30: unix.IGNPAR, 31: unix.PARMRK, 32: unix.INPCK, 33: unix.ISTRIP,
	34: unix.INLCR,
	35: unix.IGNCR, 36: unix.ICRNL, 37: unix.IUCLC, 38: unix.IXON, 39: unix.IXANY, 40: unix.IXOFF,
	41: unix.IMAXBEL, 42: unix.IUTF8}

var localFlags = map[byte]uint32{50: unix.ISIG, 51: unix.ICANON, 52: unix.XCASE, 53: unix.ECHO,
	54: unix.ECHOE, 55: unix.ECHOK,
	56: unix.ECHONL, 57: unix.NOFLSH, 58: unix.TOSTOP, 59: unix.IEXTEN, 60: unix.ECHOCTL,
	61: unix.ECHOKE, 62: unix.PENDIN}

var outputFlags = map[byte]uint32{70: unix.OPOST, 71: unix.OLCUC, 72: unix.ONLCR, 73: unix.OCRNL,
	74: unix.ONOCR, 75: unix.ONLRET}

// applyModes applies a pty-req's encoded modes to t. It skips modes that this system does not have,
// and stops at a truncated entry.
func applyModes(t *unix.Termios, modes string) {
	for len(modes) >= 5 && modes[0] != opEnd && modes[0] < opUnparsed {
		op, value := modes[0], binary.BigEndian.Uint32([]byte(modes[1:5]))
		modes = modes[5:]
		switch op {
		case 90: // CS7; the others have no mode
			if value != 0 {
				t.Cflag = t.Cflag&^unix.CSIZE | unix.CS7
			}
		case 91:
			if value != 0 {
				t.Cflag = t.Cflag&^unix.CSIZE | unix.CS8
			}
		case 92:
			setFlag(&t.Cflag, unix.PARENB, value)
		case 93:
			setFlag(&t.Cflag, unix.PARODD, value)
		case opIspeed, opOspeed: // a pseudo-terminal has no line speed
		default:
			if i, ok := controlChars[op]; ok {
				if value == 255 { // "255 if none"; on Linux 0 disables
					value = 0
				}
				t.Cc[i] = uint8(value)
			}
			setFlag(&t.Iflag, inputFlags[op], value)
			setFlag(&t.Lflag, localFlags[op], value)
			setFlag(&t.Oflag, outputFlags[op], value)
		}
	}
}

func setFlag(flags *uint32, bits, value uint32) {
	if value != 0 {
		*flags |= bits
	} else {
		*flags &^= bits
	}
}
