"""Speech from the eSpeak NG library that the wheel `espeakng-loader` carries, called through ctypes.

The library draws breath and flutter at random. Its generator is seeded once, when it is loaded; what it draws
then depends on all calls before, so the same sequence of calls in a new process gives the same samples.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fsachain.errors import DataError, require

# Values of the enumerations in eSpeak NG's speak_lib.h.
_AUDIO_OUTPUT_SYNCHRONOUS = 2
_INITIALIZE_PHONEME_EVENTS = 0x0001
_INITIALIZE_DONT_EXIT = 0x8000
_POSITION_CHARACTER = 1
_CHARS_UTF8 = 1
_PARAMETERS = {"rate": 1, "pitch": 3, "range": 4}

_LIST_TERMINATED, _WORD, _PHONEME = 0, 1, 7  # types of events


class _Event(ctypes.Structure):
    """`espeak_EVENT`; of its union the eight letters of a phoneme's name."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("name", ctypes.c_char * 8),
    )


_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


class Mark(NamedTuple):
    """Where a phoneme begins, in samples; `word` counts the words of the text from 0, -1 before the first."""

    sample: int
    word: int
    phoneme: str


@dataclass(frozen=True)
class Delivery:
    """How a text is spoken: rate in words per minute (80 to 450), pitch and its range from 0 to 99."""

    rate: int = 175
    pitch: int = 50
    range: int = 50


class Synthesizer:
    """A loaded eSpeak NG library, of which a process can hold one; `sample_rate` in Hz is that of all audio."""

    def __init__(self) -> None:
        loader = require("espeakng_loader", extra="recipes")
        self._library = ctypes.CDLL(loader.get_library_path())
        data_path = str(loader.get_data_path()).encode()
        self.sample_rate = int(
            self._library.espeak_Initialize(
                _AUDIO_OUTPUT_SYNCHRONOUS, 0, data_path, _INITIALIZE_PHONEME_EVENTS | _INITIALIZE_DONT_EXIT
            )
        )
        if self.sample_rate <= 0:
            raise DataError(f"eSpeak NG did not start with the data folder {data_path.decode()!r}")
        self._library.espeak_ng_SetRandSeed(1)
        self._variants = Path(data_path.decode()) / "voices" / "!v"
        self._chunks: list[NDArray[np.int16]] = []
        self._marks: list[Mark] = []
        self._word = -1
        self._callback = _CALLBACK(self._collect)  # kept: the library holds only the pointer
        self._library.espeak_SetSynthCallback(self._callback)

    def _collect(self, samples: Any, count: int, events: Any) -> int:
        if samples and count > 0:
            self._chunks.append(np.ctypeslib.as_array(samples, shape=(count,)).copy())
        position = 0
        while events and events[position].type != _LIST_TERMINATED:
            event = events[position]
            self._word += event.type == _WORD
            if event.type == _PHONEME:
                self._marks.append(Mark(event.sample, self._word, event.name.decode()))
            position += 1
        return 0

    def speak(self, text: str, voice: str, delivery: Delivery) -> tuple[NDArray[np.int16], list[Mark]]:
        """Samples of `text`, and where its phonemes begin; `voice` is language and variant, such as "en-us+f2"."""
        library = self._library
        # The library silently takes an unknown variant for none, so its file is looked up first.
        variant = voice.partition("+")[2]
        unknown = variant and not (self._variants / variant).is_file()
        if unknown or library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise DataError(f"eSpeak NG has no voice {voice!r}")
        for name, number in _PARAMETERS.items():
            library.espeak_SetParameter(number, getattr(delivery, name), 0)
        self._chunks.clear()
        self._marks, self._word = [], -1
        data = text.encode()
        library.espeak_Synth(data, len(data) + 1, 0, _POSITION_CHARACTER, 0, _CHARS_UTF8, None, None)
        library.espeak_Synchronize()
        if not self._chunks:
            raise DataError(f"eSpeak NG gave no samples for {text!r} with voice {voice!r}")
        return np.concatenate(self._chunks), self._marks
