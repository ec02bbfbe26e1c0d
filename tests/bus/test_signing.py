"""A signature proves who sent a message, and that it is the same; nothing else is taken for one."""

import hmac
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.bus.codec import envelope_message
from agentic_trading.bus.errors import SignatureError, SigningKeyError
from agentic_trading.bus.message import Message
from agentic_trading.bus.signing import (
    PRINCIPAL_HEADER,
    SIGNATURE_HEADER,
    Signer,
    Verifier,
    keys_by_principal,
    keys_stamp,
    read_keys,
)
from agentic_trading.canonical import utc_text
from agentic_trading.clock import SystemClock
from tests.build import envelope

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
FREE_HEADERS = {"traceparent"}

SIGNER = Signer("desk-a", KEY)
VERIFIER = Verifier({"desk-a": (KEY,), "desk-b": (OTHER_KEY,)})
SIGNED = SIGNER.sign(envelope_message(envelope(causation_id="cause", subject="BTCUSDT")))
HELD_HEADERS = sorted(set(SIGNED.headers) - FREE_HEADERS)


def fault(message: Message, verifier: Verifier = VERIFIER) -> str:
    """Return what is wrong with a message's signature."""
    with pytest.raises(SignatureError) as caught:
        verifier.signer_of(message)
    return caught.value.fault


def with_headers(message: Message, **headers: str) -> Message:
    return Message(message.key, message.value, {**message.headers, **headers})


def without(message: Message, name: str) -> Message:
    return Message(message.key, message.value, {key: v for key, v in message.headers.items() if key != name})


def flipped(text: bytes, place: int, bits: int) -> bytes:
    """Return `text` with some bits of one byte turned over."""
    place %= len(text)
    return text[:place] + bytes([text[place] ^ bits]) + text[place + 1 :]


def test_verifier_returns_signer_of_message() -> None:
    assert VERIFIER.signer_of(SIGNED).principal == "desk-a"
    assert SIGNED.headers[PRINCIPAL_HEADER] == "desk-a"
    assert (
        Verifier({"desk-b": (OTHER_KEY,)}).signer_of(Signer("desk-b", OTHER_KEY).sign(SIGNED)).principal
        == "desk-b"
    )


def test_signing_adds_only_two_headers() -> None:
    plain = envelope_message(envelope())

    signed = SIGNER.sign(plain)

    assert (signed.key, signed.value) == (plain.key, plain.value)
    assert {
        **plain.headers,
        PRINCIPAL_HEADER: "desk-a",
        SIGNATURE_HEADER: signed.headers[SIGNATURE_HEADER],
    } == signed.headers
    assert all(value.isascii() and value.isprintable() for value in signed.headers.values())


def test_signature_matches_documented_format() -> None:
    parts = [
        b"agentic/message/v1", b"trace", b"at_principal", b"desk-a", b"ce_id", b"1",
        b"content-type", b"application/json", b"{}",
    ]  # fmt: skip
    expected = hmac.new(KEY, b"".join(len(part).to_bytes(8, "big") + part for part in parts), sha256)

    headers = {"traceparent": "00", "content-type": "application/json", "ce_id": "1"}

    assert SIGNER.sign(Message("trace", b"{}", headers)).headers[SIGNATURE_HEADER] == expected.hexdigest()


@given(place=st.integers(0, 10**6), bits=st.integers(1, 255))
def test_changed_value_byte_is_refused(place: int, bits: int) -> None:
    changed = Message(SIGNED.key, flipped(SIGNED.value, place, bits), SIGNED.headers)

    assert fault(changed) == "wrong"


@given(name=st.sampled_from(HELD_HEADERS), place=st.integers(0, 10**6), bits=st.integers(1, 127))
def test_changed_header_byte_is_refused(name: str, place: int, bits: int) -> None:
    value = flipped(SIGNED.headers[name].encode(), place, bits).decode()

    assert fault(with_headers(SIGNED, **{name: value})) in {"wrong", "unknown_principal"}


@given(name=st.sampled_from(HELD_HEADERS), place=st.integers(0, 10**6), bits=st.integers(1, 127))
def test_changed_header_name_byte_is_refused(name: str, place: int, bits: int) -> None:
    renamed = flipped(name.encode(), place, bits).decode()
    headers = {renamed if key == name else key: value for key, value in SIGNED.headers.items()}

    assert fault(Message(SIGNED.key, SIGNED.value, headers)) in {"wrong", "missing"}


@given(place=st.integers(0, 10**6), bits=st.integers(1, 127))
def test_changed_key_byte_is_refused(place: int, bits: int) -> None:
    changed = flipped(SIGNED.key.encode(), place, bits).decode()

    assert fault(Message(changed, SIGNED.value, SIGNED.headers)) == "wrong"


@pytest.mark.parametrize("name", HELD_HEADERS)
def test_removed_header_is_refused(name: str) -> None:
    assert fault(without(SIGNED, name)) in {"wrong", "missing"}


@pytest.mark.parametrize("name", ["ce_final", "ce_", "at_admin", "at_"])
def test_added_header_is_refused(name: str) -> None:
    assert fault(with_headers(SIGNED, **{name: "true"})) == "wrong"


def test_signature_covers_send_time() -> None:
    now = SystemClock().now()
    sent = SIGNER.sign(envelope_message(envelope(), sent_at=now))

    assert VERIFIER.signer_of(sent).principal == "desk-a"
    assert fault(with_headers(sent, at_sent=utc_text(now + timedelta(days=9)))) == "wrong"
    assert fault(without(sent, "at_sent")) == "wrong"


def test_replayed_dead_letter_keeps_valid_signature() -> None:
    assert VERIFIER.signer_of(with_headers(SIGNED, at_replayed="letter-1")).principal == "desk-a"


def test_tracing_headers_may_change_after_signing() -> None:
    passed = with_headers(without(SIGNED, "traceparent"), tracestate="a=b", baggage="c=d")

    assert VERIFIER.signer_of(passed).principal == "desk-a"


@pytest.mark.parametrize(
    ("parts", "moved"),
    [
        (("ab", b"c"), ("a", b"bc")),
        (("", b"ab"), ("ab", b"")),
    ],
)
def test_bytes_cannot_move_between_signed_parts(parts: tuple[str, bytes], moved: tuple[str, bytes]) -> None:
    signed = SIGNER.sign(Message(*parts, {}))

    assert fault(Message(*moved, signed.headers)) == "wrong"


def test_mismatched_signer_name_or_key_is_refused() -> None:
    assert fault(with_headers(SIGNED, at_principal="desk-b")) == "wrong"
    assert fault(with_headers(SIGNED, at_principal="desk-c")) == "unknown_principal"
    assert fault(Signer("desk-a", OTHER_KEY).sign(SIGNED)) == "wrong"


def test_unsigned_message_is_refused() -> None:
    assert fault(envelope_message(envelope())) == "missing"
    assert fault(with_headers(SIGNED, at_signature="")) == "missing"


@given(st.text(st.characters(exclude_categories=()), min_size=1))
def test_arbitrary_signature_text_is_refused(text: str) -> None:
    assert fault(with_headers(SIGNED, at_signature=text)) == "wrong"
    assert fault(with_headers(SIGNED, at_principal=text)) in {"wrong", "unknown_principal"}


def test_signing_again_replaces_the_signature() -> None:
    again = SIGNER.sign(SIGNER.sign(SIGNED))

    assert again == SIGNED
    assert VERIFIER.signer_of(Signer("desk-b", OTHER_KEY).sign(SIGNED)).principal == "desk-b"


@pytest.mark.parametrize("principal", ["", ".", "-a", "a b", "a/b", "ä", "a\n", "x" * 129])
def test_invalid_principal_name_is_refused(principal: str) -> None:
    with pytest.raises(SigningKeyError, match="letters, digits"):
        Signer(principal, KEY)
    with pytest.raises(SigningKeyError, match="letters, digits"):
        Verifier({principal: (KEY,)})


def test_short_signing_key_is_refused() -> None:
    for make in (lambda: Signer("desk-a", KEY[:31]), lambda: Verifier({"desk-a": (KEY[:31],)})):
        with pytest.raises(SigningKeyError, match=r"has 31 bytes\. Allowed: 32 or more"):
            make()


def test_repr_hides_signing_keys() -> None:
    assert repr(SIGNER) == "Signer('desk-a', …)"
    assert repr(VERIFIER) == "Verifier('desk-a', 'desk-b')"


def test_keys_are_read_by_file_name(tmp_path: Path) -> None:
    (tmp_path / "desk-a").write_bytes(b" " + KEY + b"\n")
    (tmp_path / "desk-b").write_bytes(OTHER_KEY + b"longer")
    (tmp_path / "..data").mkdir()
    (tmp_path / ".note").write_text("no key", encoding="utf-8")

    assert read_keys(tmp_path) == {"desk-a": (KEY,), "desk-b": (OTHER_KEY + b"longer",)}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("desk-b", b"short\n", "has 5 bytes. Allowed: 32 or more"),
        ("desk-b", b"", "has 0 bytes"),
        ("desk-b", KEY + b"\n", "is also the key of desk-a"),
        ("desk b", OTHER_KEY, "is called 'desk b'"),
        ("desk-b~", OTHER_KEY, "is called 'desk-b~'"),
    ],
)
def test_invalid_key_file_is_named(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / "desk-a").write_bytes(KEY)
    (tmp_path / name).write_bytes(content)

    with pytest.raises(SigningKeyError) as caught:
        read_keys(tmp_path)

    assert (caught.value.where, said in str(caught.value)) == (str(tmp_path / name), True)
    assert KEY.decode() not in str(caught.value)


def test_folder_without_keys_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "desk-a").mkdir()

    for folder, said in (
        (tmp_path / "none", "cannot be read"),
        (tmp_path / "folder", "has no key"),
        (tmp_path / "folder" / "desk-a", "has no key"),
    ):
        with pytest.raises(SigningKeyError, match=said):
            read_keys(folder)


def test_keys_follow_configured_principal_names() -> None:
    keys = {"desk-a-2026": (KEY,), "desk-b": (OTHER_KEY,), "old": (b"x" * 32,)}

    assert keys_by_principal(keys, {"desk-a": ("desk-a-2026", "old"), "desk-b": ("desk-b",)}) == {
        "desk-a": (KEY, b"x" * 32),
        "desk-b": (OTHER_KEY,),
    }
    with pytest.raises(
        SigningKeyError, match=r"the key 'desk-c' of desk-c is missing\. Allowed: desk-a-2026, "
    ):
        keys_by_principal(keys, {"desk-b": ("desk-b",), "desk-c": ("desk-c",)})


def test_principal_folder_holds_ordered_keys(tmp_path: Path) -> None:
    for name, key in (
        ("desk-a/10", OTHER_KEY),
        ("desk-a/9", KEY),
        ("desk-a/.old", b"short"),
        ("desk-b", b"x" * 32),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(key)

    assert read_keys(tmp_path) == {"desk-a": (KEY, OTHER_KEY), "desk-b": (b"x" * 32,)}

    (tmp_path / "desk-b").write_bytes(OTHER_KEY)
    with pytest.raises(SigningKeyError, match="is also the key of desk-a"):
        read_keys(tmp_path)


def test_key_change_alters_the_stamp(tmp_path: Path) -> None:
    (tmp_path / "desk-a").mkdir()
    (tmp_path / "desk-a" / "1").write_bytes(KEY)
    stamps = [keys_stamp(tmp_path)]

    (tmp_path / "desk-a" / "2").write_bytes(OTHER_KEY)
    stamps.append(keys_stamp(tmp_path))
    (tmp_path / "desk-a" / "2").write_bytes(OTHER_KEY + b"longer")
    stamps.append(keys_stamp(tmp_path))
    (tmp_path / "desk-a" / "1").unlink()
    stamps.append(keys_stamp(tmp_path))

    assert len(set(stamps)) == 4
    assert keys_stamp(tmp_path) == stamps[-1]
    (tmp_path / "desk-b").symlink_to(tmp_path / "nowhere")
    with pytest.raises(SigningKeyError, match="desk-b cannot be read"):
        keys_stamp(tmp_path)


def test_keys_are_renewed_in_place() -> None:
    signer, verifier = Signer("desk-a", KEY), Verifier({"desk-a": (KEY,)})
    before = signer.sign(SIGNED)

    signer.renew((OTHER_KEY, KEY))
    verifier.renew({"desk-a": (OTHER_KEY,)})

    assert verifier.signer_of(signer.sign(SIGNED)).principal == "desk-a"
    assert signer.has_signed(before)
    with pytest.raises(SignatureError):
        verifier.signer_of(before)
    for wrong in ((), (b"short",)):
        with pytest.raises(SigningKeyError):
            signer.renew(wrong)
    assert signer.has_signed(before)


def test_all_keys_are_valid_during_rotation() -> None:
    verifier = Verifier({"desk-a": (KEY, OTHER_KEY)})

    assert verifier.signer_of(Signer("desk-a", KEY).sign(SIGNED)).principal == "desk-a"
    assert verifier.signer_of(Signer("desk-a", OTHER_KEY).sign(SIGNED)).principal == "desk-a"
    with pytest.raises(SignatureError):
        verifier.signer_of(Signer("desk-a", b"x" * 32).sign(SIGNED))


def test_reply_is_signed_with_request_key() -> None:
    verifier = Verifier({"desk-a": (KEY, OTHER_KEY)})

    for signer, other in ((SIGNER, Signer("desk-a", OTHER_KEY)), (Signer("desk-a", OTHER_KEY), SIGNER)):
        answer = verifier.signer_of(signer.sign(SIGNED)).sign(SIGNED)

        assert signer.has_signed(answer)
        assert not other.has_signed(answer)


def test_has_signed_checks_key_and_name() -> None:
    assert SIGNER.has_signed(SIGNER.sign(SIGNED))
    assert not SIGNER.has_signed(Message(SIGNED.key, SIGNED.value, {}))
    assert not SIGNER.has_signed(Signer("desk-b", KEY).sign(SIGNED))
