"""Events one at a time: a trained model behind a state per id."""

from lapse.streaming.answers import Answer as Answer
from lapse.streaming.answers import Answers as Answers
from lapse.streaming.stream import Stream as Stream
