"""Keys are complete, checked at decoration, and bind arguments as their function does."""

import functools
from types import SimpleNamespace

import pytest

from django_vega.core.errors import IncompleteKeyError, KeyTemplateError, UnstableKeyError
from django_vega.core.keys import build_key, parse_template
from tests.core.key_examples import Model, Repository, SafeString, everything, one, two


def template_error(template, function=two, **options):
    with pytest.raises(KeyTemplateError) as caught:
        build_key(function, template, **options)
    message = str(caught.value)
    assert message.startswith(f"{function.__qualname__}: ")
    return message


# Templates


def test_key__of_the_documented_example():
    """Defaults count as given, and keyword arguments as positional ones."""
    key = build_key(Repository.refresh, "quakes:{region}:{cursor}")
    assert (key.namespace, key.template) == ("quakes", "quakes:{region}:{cursor}")
    repository = Repository()
    assert key.render(repository, "alaska") == "quakes:alaska:head"
    assert key.render(repository, cursor="2", region="alaska") == "quakes:alaska:'2'"


def test_key__of_attributes():
    """An attribute path covers its parameter."""
    key = build_key(Repository.refresh, "q:{self.tenant_id}:{region.a.b}", ignore=("cursor",))
    region = SimpleNamespace(a=SimpleNamespace(b=1.5))
    assert key.render(Repository(), region) == "q:t1:float(1.5)"
    with pytest.raises(UnstableKeyError) as caught:
        key.render(Repository(), SimpleNamespace(a=SimpleNamespace(b=object())))
    assert caught.value.field == "region.a.b"
    with pytest.raises(AttributeError, match="tenant_id"):
        key.render(None, region)


def test_key__of_self_itself():
    """A bare {self} follows the rules of every value."""

    class Quake(Model):
        def refresh(self):
            pass

    key = build_key(Quake.refresh, "q:{self}").render
    assert key(Quake(7)) == "q:feed.quake(7)"
    with pytest.raises(UnstableKeyError, match="'self'"):
        key(SimpleNamespace())


@pytest.mark.parametrize(
    ("template", "namespace"),
    [("feed", "feed"), ("feed.v2_a-b", "feed.v2_a-b"), ("feed/{a}:{b}", "feed")],
)
def test_namespace__is_the_literal_head(template, namespace):
    """The namespace ends at the first character that it may not contain."""
    parsed = parse_template(template)
    assert parsed.namespace == namespace
    assert parsed.text == template


def test_key__with_braces_and_quotes_in_its_literals():
    """Literals come out as they were written, whatever they contain."""
    key = build_key(two, "k'\"\\{{é{{:{a}}}:\n{b}{{x}}").render
    assert key(1, 2) == "k'\"\\{é{:1}:\n2{x}"


def test_key__of_a_function_without_parameters():
    """Such a function needs a namespace only."""
    assert build_key(lambda: None, "feed").render() == "feed"


@pytest.mark.parametrize(
    ("template", "part"),
    [
        (None, "key=None is not a key"),
        ("", "key='' is not a key"),
        (3, "key=3 is not a key"),
        ("k:{a}:{b", "malformed"),
        ("k:{a}:b}", "malformed"),
        ("k:{a}:{b!}", "malformed"),
        ("{a}:{b}", "namespace"),
        (":{a}:{b}", "namespace"),
        ("é:{a}:{b}", "namespace"),
        ("k:{}:{b}", "positional"),
        ("k:{0}:{b}", "positional"),
        ("k:{0.a}:{b}", "positional"),
        ("k:{a!r}:{b}", "conversion"),
        ("k:{a:>3}:{b}", "format"),
        ("k:{a:{b}}", "format"),
        ("k:{a[0]}:{b}", "neither a parameter"),
        ("k:{a.}:{b}", "neither a parameter"),
        ("k:{a..c}:{b}", "neither a parameter"),
        ("k:{a.class}:{b}", "neither a parameter"),
        ("k:{ a}:{b}", "neither a parameter"),
        ("k:{a+b}", "neither a parameter"),
        ("k:{a()}:{b}", "neither a parameter"),
        ("k\x00:{a}:{b}", "NUL"),
        ("k\ud800:{a}:{b}", "surrogate"),
        ("k:{a}:{c}", "names 'c', which is no parameter of the function; there is a, b"),
    ],
)
def test_template__that_is_wrong(template, part):
    """What is wrong with a template is said at decoration, with the template's own words."""
    message = template_error(template)
    assert part in message
    assert repr(template) in message


def test_unknown_names__get_a_suggestion():
    """A misspelt parameter is answered with the one that was meant."""
    message = template_error("q:{regoin}", Repository.refresh)
    assert "'regoin'" in message
    assert "did you mean 'region'?" in message
    message = template_error("q:{region}", Repository.refresh, ignore=("curser",))
    assert "ignore names 'curser'" in message
    assert "did you mean 'cursor'?" in message
    assert "there is self, region, cursor" in template_error("q:{xyz}", Repository.refresh)
    with pytest.raises(KeyTemplateError, match="there is none"):
        build_key(lambda: None, "q:{x}")


def test_ignore__that_contradicts_the_template():
    """A parameter cannot both take part and be ignored."""
    message = template_error("q:{a}:{b.pk}", ignore=("b",))
    assert "'b' and ignore does" in message


def test_ignore__that_is_a_str():
    """ignore="ab" would mean a and b; the tuple that was meant is shown."""
    assert "pass ('ab',)" in template_error("q:{a}:{b}", ignore="ab")


@pytest.mark.parametrize("function", [3, dict])
def test_function__whose_parameters_cannot_be_read(function):
    """Completeness cannot be checked without a signature."""
    with pytest.raises(KeyTemplateError, match="cannot be read"):
        build_key(function, "k")


# Completeness


@pytest.mark.parametrize(
    ("function", "template", "options", "missing"),
    [
        (Repository.refresh, "feed", {}, ("region", "cursor")),
        (Repository.refresh, "feed:{region}", {}, ("cursor",)),
        (Repository.refresh, "feed:{self.tenant_id}", {"ignore": ["region"]}, ("cursor",)),
        (two, "feed", {}, ("a", "b")),
        (two, "feed", {"exempt_first": True}, ("b",)),
        (everything, "feed", {}, ("first", "second", "args", "third", "kwargs")),
        (everything, "feed:{second}:{third}", {"exempt_first": True}, ("args", "kwargs")),
        (lambda *args: None, "feed", {"exempt_first": True}, ("args",)),
        (lambda *self: None, "feed", {}, ("self",)),
        (lambda *, cls: None, "feed", {}, ("cls",)),
        (lambda a, self: None, "feed:{a}", {}, ("self",)),
    ],
)
def test_completeness__with_forgotten_parameters(function, template, options, missing):
    """A parameter that takes no part in the key is an error at decoration that names it."""
    with pytest.raises(IncompleteKeyError) as caught:
        build_key(function, template, **options)
    assert caught.value.parameters == missing
    assert caught.value.function == function.__qualname__


@pytest.mark.parametrize(
    ("function", "template", "options"),
    [
        (Repository.refresh, "feed", {"ignore": ("region", "cursor")}),
        (Repository.refresh, "feed", {"ignore": ["self", "region", "cursor"]}),
        (lambda cls: None, "feed", {}),
        (lambda self, /: None, "feed", {}),
        (one, "feed", {"exempt_first": True}),
        (everything, "feed:{args}:{kwargs}", {"ignore": {"first", "second", "third"}}),
    ],
)
def test_completeness__when_each_parameter_is_named_or_ignored(function, template, options):
    """Named, ignored and bound parameters are complete."""
    assert build_key(function, template, **options).namespace == "feed"


# Calls


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((1,), {}),
        ((1, 2), {}),
        ((1, 2), {"third": 3, "second": 2}),
        ((), {"first": 1, "second": 2, "third": 3}),
    ],
)
def test_wrong_arguments__raise_what_the_function_raises(args, kwargs):
    """The renderer refuses wrong arguments in the function's own words, callable key or not."""

    def takes(first, /, second, *, third):
        pass

    with pytest.raises(TypeError) as expected:
        takes(*args, **kwargs)
    for key in ("k:{first}:{second}:{third}", lambda *args, **kwargs: "k"):
        with pytest.raises(TypeError) as caught:
            build_key(takes, key).render(*args, **kwargs)
        assert str(caught.value) == str(expected.value)


def test_defaults__of_every_kind():
    """Defaults take part in the key exactly as Python binds them."""

    def function(a, b="b", /, c="c", *rest, d, e="e", **more):
        pass

    key = build_key(function, "k:{a}:{b}:{c}:{rest}:{d}:{e}:{more}").render
    assert key("a", d="d") == "k:a:b:c:tuple():d:e:dict()"
    assert key(1, 2, 3, 4, d=5, e=6, a=7) == "k:1:2:3:tuple(4):5:6:dict((a,7))"


def test_defaults__that_are_mutable():
    """A default is rendered as it is at the call, as the function would see it."""
    shared = []

    def function(x=shared):
        pass

    key = build_key(function, "k:{x}").render
    assert key() == "k:list()"
    shared.append(1)
    assert key() == "k:list(1)"


def test_parameters__named_like_the_renderer_s_own():
    """No name of a parameter gets into the way of the generated code."""

    def function(_text, _suffix_, render):
        pass

    key = build_key(function, "k:{_text}:{_suffix_}:{render}", vary=[("v", lambda: 1)]).render
    assert key(1, 2, 3) == "k:1:2:3:v(1)"


def test_function__that_is_wrapped_or_partial():
    """Wrapped functions show the parameters of what they wrap, partials those that remain."""

    @functools.wraps(two)
    def wrapper(*args, **kwargs):
        pass

    assert build_key(wrapper, "k:{a}:{b}").render(b=2, a=1) == "k:1:2"
    partial = functools.partial(two, 1)
    assert build_key(partial, "k:{b}").render(2) == "k:2"


def test_function__with_annotations_that_do_not_resolve():
    """Names that exist for type checkers only do not matter at decoration."""
    names = {}
    source = "from __future__ import annotations\ndef f(x: Missing) -> Missing: pass"
    exec(source, names)
    assert build_key(names["f"], "k:{x}").render(1) == "k:1"


# Callable keys


def test_callable_key__is_used_as_it_stands():
    """A callable key gets the arguments as they were passed, and its text is not touched."""
    seen = []

    def key(*args, **kwargs):
        seen.append((args, kwargs))
        return SafeString("a:*%?")

    renderer = build_key(Repository.refresh, key)
    repository = Repository()
    text = renderer.render(repository, region="alaska")
    assert text == "a:*%?"
    assert type(text) is str
    assert seen == [((repository,), {"region": "alaska"})]
    assert (renderer.namespace, renderer.template) == (None, None)


def test_callable_key__that_returns_none():
    """None means: this call is not coordinated, whatever varies."""
    assert build_key(two, lambda a, b: None, vary=[("v", lambda: 1)]).render(1, 2) is None


@pytest.mark.parametrize(
    ("text", "type_name", "part"),
    [
        ("", "str", "not empty"),
        (SafeString(""), f"{SafeString.__module__}.SafeString", "not empty"),
        (1, "int", "not empty"),
        (b"k", "bytes", "not empty"),
        ("a\x00", "str", "NUL"),
        ("a\udfff", "str", "surrogate"),
    ],
)
def test_callable_key__that_returns_no_key(text, type_name, part):
    """What is no key is refused at the call, by the name of the callable."""

    def quake_key(x):
        return text

    with pytest.raises(UnstableKeyError) as caught:
        build_key(one, quake_key).render(1)
    assert caught.value.field.endswith("quake_key")
    assert caught.value.type_name == type_name
    assert part in caught.value.reason


def test_callable_key__that_raises():
    """Its own errors, a TypeError too, reach the caller as they are."""

    def key(x):
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        build_key(one, key).render(1)


def test_callable_key__with_options_that_do_nothing():
    """Beside a callable key ignore is a dead option, and an async key could not be awaited."""
    assert "callable key" in template_error(lambda a, b: "k", ignore=("a",))

    async def key(a, b):
        return "k"

    assert "async" in template_error(key)


def test_callable_key__that_is_an_object():
    """An object with __call__ is a callable key; errors name its class."""

    class QuakeKey:
        def __call__(self, x):
            return x

    render = build_key(one, QuakeKey()).render
    assert render("k") == "k"
    with pytest.raises(UnstableKeyError, match="QuakeKey"):
        render(1)


# Ambient values


def test_vary__is_asked_at_every_render():
    """Ambient values end the key, rendered like every other value."""
    language = ["de"]
    vary = [("language", lambda: language[0]), ("a:b", lambda: (1, "1"))]
    key = build_key(one, "k:{x}", vary=vary).render
    assert key("a") == "k:a:language(de):a%3Ab(tuple(1,'1'))"
    language[0] = "x:y"
    assert key("a") == "k:a:language(x%3Ay):a%3Ab(tuple(1,'1'))"
    assert build_key(one, lambda x: "own", vary=vary[:1]).render(1) == "own:language(x%3Ay)"


def test_vary__with_a_value_without_a_text():
    """An ambient value without a stable text is refused by its name."""
    with pytest.raises(UnstableKeyError) as caught:
        build_key(one, "k:{x}", vary=[("tenant", object)]).render(1)
    assert caught.value.field == "tenant"
